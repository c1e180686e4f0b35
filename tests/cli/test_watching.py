"""`minserve top` and `minserve trace`: what they draw, and what they say when there is nothing."""

from __future__ import annotations

import io
import json

import pytest
from rich.console import Console

from minserve.cli import top, trace

PICTURE = {
    "model": "nano",
    "time_s": 3.0,
    "running": 3,
    "waiting": 12,
    "blocks": {"used": 300, "cached": 100, "free": 600, "total": 1000, "block_size": 16},
    "rates": {
        "output_tokens_per_s": 1234.5,
        "computed_tokens_per_s": 5678.9,
        "steps_per_s": 100.0,
        "step_s": 0.0085,
        "busy": 0.85,
    },
    "rows": 3,
    "load": {"rung": 2, "label": "shorten output", "queued_tokens": {"interactive": 2_500}},
}
TOLD = {
    "id": "chatcmpl-1",
    "object": "trace",
    "workload_class": "standard",
    "priority": 0,
    "state": "length",
    "num_prompt_tokens": 600,
    "num_cached_tokens": 16,
    "num_output_tokens": 40,
    "num_preemptions": 1,
    "queue_delay_s": 0.1,
    "ttft_s": 0.3,
    "tpot_s": 0.02,
    "e2e_s": 2.0,
    "deadline_s": 1.5,
    "finished_s": 2.0,
    "spans": [
        {"kind": "queued", "start_s": 0.0, "end_s": 0.1, "num_tokens": 0, "num_steps": 0},
        {"kind": "prefill", "start_s": 0.1, "end_s": 0.2, "num_tokens": 512, "num_steps": 1},
        {"kind": "prefill", "start_s": 0.2, "end_s": 0.3, "num_tokens": 72, "num_steps": 1},
        {"kind": "decode", "start_s": 0.3, "end_s": 0.9, "num_tokens": 10, "num_steps": 10},
        {"kind": "queued", "start_s": 0.9, "end_s": 1.2, "num_tokens": 0, "num_steps": 0},
        {"kind": "decode", "start_s": 1.2, "end_s": 2.0, "num_tokens": 30, "num_steps": 30},
    ],
    "preempted_s": [0.9],
}


def printed(renderable, width: int = 100) -> str:
    console = Console(file=io.StringIO(), width=width, highlight=False)
    console.print(renderable)
    return console.file.getvalue()


@pytest.mark.parametrize("width", [60, 100])
def test_top_shows_the_figures_the_rung_and_every_block(width):
    text = printed(top.screen(PICTURE, [1.0, 2.0, 4.0], width), width)
    for shown in ("nano", "3 running", "12 waiting", "300 used", "600 free", "shorten output"):
        assert shown in " ".join(text.split())
    assert "interactive 2,500" in text and "■■■□□□" in text
    assert max(map(len, text.splitlines())) == width


@pytest.mark.parametrize("total", [1, 7, 576, 577, 100_000])
def test_the_block_map_keeps_the_proportions_at_any_size(total):
    used, cached = total // 2, total // 4
    blocks = {"used": used, "cached": cached, "free": total - used - cached, "total": total}
    cells = top.block_map({**blocks, "block_size": 16}, 96).plain.rsplit("\n", 1)[0]
    num_cells = sum(cells.count(sign) for _, sign, _ in top.CELLS)
    assert num_cells <= 96 * top.MAP_ROWS
    if total > 100:
        assert cells.count("█") / num_cells == pytest.approx(0.5, abs=0.02)
        assert cells.count("▒") / num_cells == pytest.approx(0.25, abs=0.02)


def test_a_spark_has_its_highest_bar_at_the_highest_value():
    assert top.spark([0, 5, 10]) == "▁▅█" and top.spark([0, 0]) == "▁▁" and top.spark([]) == ""


def test_a_trace_is_drawn_as_stretches_in_order_with_the_preemption():
    text = printed(trace.drawing(TOLD, 108), 108)
    lines = [line.split()[0] for line in text.splitlines()[2:7]]
    assert lines == ["waiting", "reading", "writing", "waiting", "writing"]
    assert "200.0 ms, 584 tokens, 2 steps" in text and "preempted at 900.0 ms" in text
    assert max(map(len, text.splitlines())) <= 108


def test_operators_see_caches_and_a_cascade_in_top_and_in_the_trace():
    reuse = {
        "caches": {"exact": {"asked": 1_234, "answered": 56}},
        "stale_hits": 0,
        "cascade": {"nano": {"passed": 7, "failed": 2}},
    }
    text = " ".join(printed(top.screen(PICTURE | {"reuse": reuse}, [1.0], 100), 100).split())
    assert "exact 56 of 1,234, nano 7 passed 2 failed" in text and "stale" not in text
    asked = {"model": "nano", "outcome": "failed", "start_s": 0.0, "end_s": 1.5}
    text = printed(trace.drawing(TOLD | {"attempts": [asked]}, 108), 108)
    assert "asked nano: failed (0.0 ms to 1.50 s)" in text


def test_a_trace_is_drawn_as_a_picture(tmp_path):
    pytest.importorskip("matplotlib")
    trace.figure(TOLD).savefig(tmp_path / "trace.png")
    assert (tmp_path / "trace.png").read_bytes().startswith(b"\x89PNG")


def test_a_request_that_has_just_arrived_can_be_drawn():
    young = {**TOLD, "spans": [], "finished_s": None, "preempted_s": [], "ttft_s": None}
    young |= {"tpot_s": None, "e2e_s": None, "queue_delay_s": None, "deadline_s": None}
    assert "chatcmpl-1" in printed(trace.drawing(young, 80), 80)
    trace.figure(young)


@pytest.mark.parametrize("arguments", [["top", "--once"], ["trace", "x"], ["top", "--json"]])
def test_no_server_is_said_in_one_line_with_a_hint(command_line, arguments):
    done = command_line.run(*arguments, "--url", "http://127.0.0.1:9")
    assert done.returncode == 2 and not done.stdout
    assert done.stderr.startswith("error: no minserve server answers at http://127.0.0.1:9")
    assert "hint: start one with `minserve serve`" in done.stderr


def test_both_work_against_a_server(command_line):
    from live_server import Live

    with Live() as live:
        answer = live.post("/v1/completions", {"prompt": "hello", "max_tokens": 4}).json()

        def run(*arguments: str) -> str:
            done = command_line.run(*arguments, "--url", live.url)
            assert done.returncode == 0, done.stderr
            return done.stdout

        assert json.loads(run("top", "--json"))["model"] == "letters"
        assert "1,024" in run("top", "--once") or "free" in run("top", "--once")
        assert "reading the prompt" in run("trace", answer["id"])
