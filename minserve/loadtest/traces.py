"""Recorded traffic: importers for two public traces, and what a cache could reuse of them.

The project ships no copy of the traces, only quantile tables (data/traces). Azure: CC-BY-4.0, cite
Splitwise (Patel et al., 2024). Mooncake: Apache-2.0 (Qin et al., 2024).
"""

from __future__ import annotations

import csv
import json
import random
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from pathlib import Path

from minserve.errors import DataNotFound

MOONCAKE_BLOCK_TOKENS = 512
NUM_DIGITS = 2
FIRST_TOKEN = 20
"""Made-up prompts leave out the ids below, where vocabularies keep their special tokens."""


@dataclass(frozen=True, slots=True)
class Row:
    """One recorded request: when, how long, and the ids of its prompt's 512-token blocks.

    Equal ids at equal places mean an equal prefix. `blocks` is empty where nothing is known.
    """

    time_s: float
    num_prompt_tokens: int
    num_output_tokens: int
    blocks: tuple[int, ...] = ()

    def prompt_token_ids(self, vocab: int = 1000, scale: float = 1.0) -> tuple[int, ...]:
        """Made-up tokens that are shared exactly where the trace's blocks are; made anew each time.

        `scale` shrinks or stretches every block alike. Raises `DataNotFound` if the trace named
        no blocks.
        """
        if not self.blocks:
            raise DataNotFound("this trace has no block ids", "use random prompts of its lengths")
        size = max(NUM_DIGITS, round(MOONCAKE_BLOCK_TOKENS * scale))
        tokens: list[int] = []
        for block in self.blocks:
            tokens += _block_token_ids(block, vocab, size)
        return tuple(tokens[: max(1, round(self.num_prompt_tokens * scale))])


def read_trace(path: Path) -> list[Row]:
    """The rows of an Azure CSV or a Mooncake JSONL file, by time from 0 on.

    Raises `DataNotFound` for a file that is absent or is neither.
    """
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            rows = list(_mooncake(file) if path.suffix == ".jsonl" else _azure(file))
    except OSError as error:
        hint = "give an Azure CSV or a Mooncake JSONL file"
        raise DataNotFound(f"cannot read {path}: {error.strerror}", hint) from None
    except (ValueError, KeyError, TypeError) as error:
        hint = "Azure CSV has TIMESTAMP,ContextTokens,GeneratedTokens; Mooncake JSONL has hash_ids"
        raise DataNotFound(f"{path} is no such trace: {error!r}", hint) from None
    if not rows:
        raise DataNotFound(f"{path} holds no request", "give a trace with at least one")
    return sorted(rows, key=lambda row: row.time_s)


def _azure(lines: Iterable[str]) -> Iterator[Row]:
    first_s = None
    for row in csv.DictReader(lines):
        # NOTE: seven decimals; datetime takes six.
        time_s = datetime.fromisoformat(row["TIMESTAMP"][:26]).timestamp()
        first_s = time_s if first_s is None else first_s
        yield Row(time_s - first_s, int(row["ContextTokens"]), int(row["GeneratedTokens"]))


def _mooncake(lines: Iterable[str]) -> Iterator[Row]:
    for line in lines:
        row = json.loads(line)
        lengths = int(row["input_length"]), int(row["output_length"])
        yield Row(row["timestamp"] / 1000, *lengths, tuple(row["hash_ids"]))


@lru_cache(maxsize=8192)
def _block_token_ids(block: int, vocab: int, size: int) -> tuple[int, ...]:
    """`size` tokens that begin with the block's own number, so that no two blocks are equal."""
    digits, number = [], block
    for _ in range(NUM_DIGITS):
        number, digit = divmod(number, vocab - FIRST_TOKEN)
        digits.append(FIRST_TOKEN + digit)
    start = block % size
    return (*digits, *_filler(vocab, size)[start : start + size - len(digits)])


@lru_cache(maxsize=8)
def _filler(vocab: int, size: int) -> tuple[int, ...]:
    rng = random.Random("filler")
    return tuple(rng.randrange(FIRST_TOKEN, vocab) for _ in range(2 * size))


def lru_hit_rate(rows: Iterable[Row], num_blocks: int) -> float:
    """Share of prompt blocks found in a cache of `num_blocks`, the least recently used leaving.

    A cache alone, before any engine: every request's blocks are looked up and then kept, partial
    last blocks counted too. How much prefix reuse this traffic could ever offer at that size.
    """
    cache: OrderedDict[int, None] = OrderedDict()
    asked = hits = 0
    for row in rows:
        for block in row.blocks:
            asked += 1
            if block in cache:
                hits += 1
                cache.move_to_end(block)
            else:
                cache[block] = None
                if len(cache) > num_blocks:
                    cache.popitem(last=False)
    return hits / asked if asked else 0.0
