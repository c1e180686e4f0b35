from __future__ import annotations

import random

import pytest

from minserve.output import Detokenizer

TEXTS = [
    "plain words",
    "emoji 🎉👩‍👩‍👧 and flags 🇩🇪",
    "日本語のテキスト、漢字",
    "cafe\u0301 Große a\u0308\u0323",
    "ends with a real \ufffd replacement \ufffd",
    "हिन्दी العربية",
    "",
]


def decode_bytes(token_ids) -> str:
    """A tokenizer whose tokens are byte strings, decoded as byte-level BPE decodes."""
    return b"".join(PIECES[t] for t in token_ids).decode("utf-8", errors="replace")


PIECES: list[bytes] = []


def cut(data: bytes, at: list[int]) -> list[int]:
    PIECES[:] = [data[a:b] for a, b in zip([0, *at], [*at, len(data)], strict=True)]
    return list(range(len(PIECES)))


@pytest.mark.parametrize("text", TEXTS)
def test_pieces_join_to_the_text_and_no_character_is_ever_split(text):
    data = text.encode()
    cuts = [[i] for i in range(len(data) + 1)] + [list(range(1, len(data)))]
    cuts += [sorted(random.Random(s).choices(range(len(data) + 1), k=5)) for s in range(50)]
    for at in cuts:
        tokens = cut(data, at)
        detokenizer = Detokenizer(decode_bytes)
        pieces = [detokenizer.append([t]) for t in tokens]
        pieces.append(detokenizer.finish())
        assert "".join(pieces) == text
        if "\ufffd" not in text:
            assert not any("\ufffd" in piece for piece in pieces)


def test_text_is_sent_as_soon_as_it_is_whole():
    tokens = cut("a日b".encode(), [1, 2, 3, 4])
    detokenizer = Detokenizer(decode_bytes)
    assert [detokenizer.append([t]) for t in tokens] == ["a", "", "", "日", "b"]


def test_bytes_that_are_no_character_do_not_hold_the_stream_up_for_ever():
    tokens = cut(b"ok " + b"\xff" * 40 + b" fine", list(range(3, 44)))
    detokenizer = Detokenizer(decode_bytes)
    sizes = []
    pieces = []
    for token in tokens:
        pieces.append(detokenizer.append([token]))
        sizes.append(len(detokenizer._window))
    text = "".join(pieces) + detokenizer.finish()
    assert text == "ok " + "\ufffd" * 40 + " fine"
    assert max(sizes) <= 20


def test_work_per_token_does_not_grow_with_the_text():
    longest = 0

    def decode(token_ids):
        nonlocal longest
        longest = max(longest, len(token_ids))
        return "".join(chr(97 + t % 26) for t in token_ids)

    detokenizer = Detokenizer(decode, stop=["never to be seen"])
    for t in range(2000):
        detokenizer.append([t])
    assert longest <= 3


def test_tokens_that_decode_to_nothing_do_not_pile_up():
    detokenizer = Detokenizer(lambda ids: "".join("x" for t in ids if t))
    for _ in range(500):
        assert detokenizer.append([0]) == ""
    assert len(detokenizer._window) < 20
    assert detokenizer.append([1]) == "x"


def spell(token_ids) -> str:
    return "".join(WORDS[t] for t in token_ids)


WORDS: list[str] = []


@pytest.mark.parametrize(
    ("text", "stop", "expected", "matched"),
    [
        ("one two END three", ["END"], "one two ", "END"),
        ("one two EN three", ["END"], "one two EN three", None),
        ("one two EN", ["END"], "one two EN", None),
        ("aaab", ["aab"], "a", "aab"),
        ("ababac", ["abac"], "ab", "abac"),
        ("\n\nUser: hi", ["\n\nUser:", "\n\nSystem:"], "", "\n\nUser:"),
        ("xabcy", ["abc", "b"], "xa", "b"),  # the stop that completes first wins
        ("xabcy", ["bc", "abc"], "x", "abc"),  # both complete at once: the longer one
        ("日本語終わり。後", ["終わり。"], "日本語", "終わり。"),
    ],
)
def test_stop_strings_end_the_text_however_it_falls_into_tokens(text, stop, expected, matched):
    for seed in range(60):
        at = sorted(random.Random(seed).choices(range(len(text) + 1), k=seed % 12))
        WORDS[:] = [text[a:b] for a, b in zip([0, *at], [*at, len(text)], strict=True)]
        detokenizer = Detokenizer(spell, stop)
        pieces = []
        for token in range(len(WORDS)):
            pieces.append(detokenizer.append([token]))
            # Nothing is ever sent that the end result does not begin with.
            assert expected.startswith("".join(pieces))
        pieces.append(detokenizer.finish())
        assert "".join(pieces) == expected
        assert detokenizer.matched_stop == matched


def test_nothing_comes_after_a_stop():
    WORDS[:] = ["stop", "more"]
    detokenizer = Detokenizer(spell, ["stop"])
    assert detokenizer.append([0]) == ""
    assert detokenizer.append([1]) == "" and detokenizer.finish() == ""
