"""A learner's decode loop and attention inside a server's executor: what they may not do."""

from __future__ import annotations

import threading
from types import SimpleNamespace

import built
import pytest
import torch
from live_server import wait_for

from minserve.execution.executor import Row
from minserve.learn import parts as learn_parts
from minserve.learn.serving.guard import Guard, PartFailed
from minserve.learn.serving.loops import NAME, Loops
from minserve.learn.serving.parts_of_server import ServedAttention
from minserve.learn.serving.shelf import Shelf
from minserve.models.sampling import sample_rows
from minserve.request import Request, SamplingParams

EOS = frozenset({0})


@pytest.fixture(autouse=True)
def workspace(tmp_path, monkeypatch):
    monkeypatch.setenv("MINSERVE_HOME", str(tmp_path))
    monkeypatch.setattr(learn_parts, "_live", {})


def loops_of(text: str | None = None, **requests: SamplingParams) -> Loops:
    if text is None:
        built.build(NAME)
    else:
        built.keep(NAME, "mine", f"def mine(forward, prompt, max_tokens, ends):\n    {text}")
    shelf = Shelf((NAME,), Guard(0.3))
    known = {id: Request(id, (1, 2, 3), sampling) for id, sampling in requests.items()}
    return Loops(shelf, known.__getitem__)


def row(id: str, position: int, sampling: SamplingParams) -> Row:
    return Row(id, (1,), position + 2, (0,), True, position, sampling)


def logits(*largest: int) -> torch.Tensor:
    found = torch.zeros(len(largest), 10)
    found[range(len(largest)), list(largest)] = 1.0
    return found


def loop_threads() -> int:
    return sum(thread.name == NAME for thread in threading.enumerate())


def test_loops_of_a_batch_choose_what_the_sampler_chooses_and_leave_others_to_it():
    greedy, warm = SamplingParams(max_tokens=3), SamplingParams(max_tokens=3, temperature=0.7)
    asks = SamplingParams(max_tokens=3, logprobs=1)
    loops = loops_of(a=greedy, b=greedy, c=warm, d=asks)
    for position, largest in enumerate(([5, 6, 7, 8], [6, 5, 8, 7], [1, 2, 3, 4])):
        rows = [
            row(i, position, s) for i, s in zip("abcd", (greedy, greedy, warm, asks), strict=True)
        ]
        assert loops(logits(*largest), rows, EOS) == sample_rows(logits(*largest), rows, EOS)
    wait_for(lambda: loop_threads() == 0)  # both have returned what they wrote


def test_a_loop_ends_with_its_request_wherever_it_is():
    sampling = SamplingParams(max_tokens=9)
    loops = loops_of(a=sampling)
    assert loops(logits(4), [row("a", 0, sampling)], EOS)[0] == [(4,)]
    assert loop_threads() == 1
    loops.end("a")
    loops.end("never seen")
    wait_for(lambda: loop_threads() == 0)


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("return [1]", "and not the prompt"),
        ("forward([1]); return [1]", "reads [1], and not the prompt"),
        ("while True: pass", "no token within 0.3 s"),
        ("raise KeyError('x')", "KeyError: 'x'"),
        ("exit()", "SystemExit"),
        ("forward(prompt); return None", "TypeError"),
        ("forward(prompt); return [4, 5]", "returned [4, 5]"),
        ("forward(prompt); forward([4, 5])", "read [4, 5]"),
        ("forward(prompt); return [99]", "token 99"),
    ],
)
def test_a_loop_that_chooses_no_token_is_named(text, what):
    sampling = SamplingParams(max_tokens=9)
    loops = loops_of(text, a=sampling)
    with pytest.raises(PartFailed) as failure:
        loops(logits(4), [row("a", 0, sampling)], EOS)
    assert what in str(failure.value) and "your part decode_loop failed" in str(failure.value)
    loops.end_all()
    wait_for(lambda: loop_threads() == 0)


def test_a_loop_that_stops_too_early_or_forgets_is_named_at_the_next_token():
    sampling = SamplingParams(max_tokens=9)
    for text, what in (
        ("return [int(forward(prompt).argmax())]", "stopped after 1 tokens"),
        ("forward(prompt); forward([4]); return [5, 6]", "returned [5, 6]"),
    ):
        loops = loops_of(text, a=sampling)
        loops(logits(4), [row("a", 0, sampling)], EOS)
        with pytest.raises(PartFailed, match="decode_loop") as failure:
            loops(logits(4), [row("a", 1, sampling)], EOS)
        assert what in str(failure.value)


ATTEND = "def mine(query, keys, values, table, num_context):\n    {}"


@pytest.mark.parametrize(
    "text",
    ["return None", "return query[0]", "return query * float('nan')", "1 / 0", "while True: pass"],
)
def test_attention_that_gives_no_answer_is_named(text):
    built.keep("paged_attention", "mine", ATTEND.format(text))
    shelf = Shelf(("paged_attention",), Guard(0.3))
    attention = ServedAttention(shelf)
    layout = attention.lay_out([row("a", 0, SamplingParams())], 16, "cpu")
    cache = torch.zeros(1, 16, 2, 4)
    with pytest.raises(PartFailed, match="your part paged_attention failed"):
        attention.attend(torch.ones(1, 4, 4), cache, cache, layout)
    assert not shelf.is_mine("paged_attention")


def test_attention_counts_for_the_request_whose_token_it_is():
    built.build("paged_attention")
    shelf = Shelf(("paged_attention",), Guard())
    for id in "ab":
        shelf.ledger.begin(id, 0.0)
    attention, sampling = ServedAttention(shelf), SamplingParams()
    rows = [row("a", 0, sampling), Row("b#1", (1, 2, 3), 0, (1,), True, 0, sampling)]
    cache = torch.randn(2, 16, 2, 4)
    found = attention.attend(torch.randn(4, 4, 4), cache, cache, attention.lay_out(rows, 16, "cpu"))
    assert found.shape == (4, 4, 4)
    counts = {p["id"]: p["parts"]["paged_attention"] for p in shelf.ledger.passages()}
    assert counts == {"a": 1, "b": 3}


def test_a_model_whose_layers_look_at_a_window_keeps_its_own_attention():
    from minserve.learn.serving import parts_of_server as put

    built.build("paged_attention")
    shelf = Shelf(("paged_attention",), Guard())
    executor = SimpleNamespace(
        decoder=SimpleNamespace(attention="own"),
        graphs="recorded",
        config=SimpleNamespace(windows=(None, 4096)),
    )
    put.paged_attention(shelf, executor, put.attention_of(executor))
    assert (executor.decoder.attention, executor.graphs) == ("own", "recorded")
    assert "window" in shelf.lines()[0]
