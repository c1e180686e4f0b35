"""Text to vectors: the protocol, and a small embedder that needs no weights."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import Protocol

import numpy as np

from minserve.reuse.guards import words


class Embedder(Protocol):
    """Places texts of like meaning near each other.

    `embed(texts)` gives float32 [len(texts), d], each row of length 1 (an empty text may be 0), so
    that a dot product is a cosine. The same text gives the same row, alone or among others.
    """

    def embed(self, texts: Sequence[str]) -> np.ndarray: ...


class HashedNgrams:
    """Counts of words, pairs of words and 3- to 5-letter pieces, hashed into `dim` signed buckets.

    The hashing trick (Weinberger et al., ICML 2009) with fastText's letter pieces (Bojanowski et
    al., 2017). Knows no synonyms: good enough to find other spellings and word orders, offline.
    """

    def __init__(self, dim: int = 1024) -> None:
        self.dim = dim

    def embed(self, texts: Sequence[str]) -> np.ndarray:
        rows = np.zeros((len(texts), self.dim), np.float32)
        for row, text in zip(rows, texts, strict=True):
            for feature, weight in _features(text):
                bucket = zlib.crc32(feature.encode())
                row[bucket % self.dim] += weight if bucket & 0x80000000 else -weight
        return unit(rows)


def unit(rows: np.ndarray) -> np.ndarray:
    """Each row at length 1; a row of zeros stays."""
    lengths = np.linalg.norm(rows, axis=-1, keepdims=True)
    return (rows / np.where(lengths > 0, lengths, 1)).astype(np.float32)


def _features(text: str) -> list[tuple[str, float]]:
    said = words(text)
    found = [(word, 1.0) for word in said]
    found += [(f"{one} {two}", 0.5) for one, two in zip(said, said[1:], strict=False)]
    for word in said:
        padded = f"<{word}>"
        for length in (3, 4, 5):
            pieces = range(len(padded) - length + 1)
            found += [("#" + padded[at : at + length], 0.3) for at in pieces]
    return found
