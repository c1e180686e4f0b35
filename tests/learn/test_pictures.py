"""Pictures: every one has words, needs no display, and says what the data say."""

from __future__ import annotations

import builtins
import struct
import subprocess
import sys
from html import escape

import pytest

from minserve import events
from minserve.client import LocalClient
from minserve.clock import EventLoop, VirtualClock
from minserve.engine import Engine
from minserve.execution.simulated import SimulatedExecutor
from minserve.learn import plots, widgets
from minserve.learn.experiments.common import words
from minserve.learn.widgets import reuse
from minserve.scheduling.batching import ContinuousBatching, StaticBatching


def run(policy, num_blocks=64, cancel=None):
    engine = Engine(SimulatedExecutor(num_blocks, 16), policy, prefix_caching=False)
    client = LocalClient(engine, EventLoop(VirtualClock()))
    for n in range(6):
        client.send(words(f"r{n}", 40 + 20 * n, 5 + 9 * n, arrival_s=0.004 * n))
    if cancel:
        client.cancel(cancel, at_s=0.03)
    client.run()
    return engine.log.events


PICTURES = {
    "block_map": lambda: plots.block_map({"a": ([0, 1], 20), "b": ([0, 2], 17)}, 8, 16, "map"),
    "waste_bars": lambda: plots.waste_bars({"slabs": (1, 4), "blocks": (9, 10)}),
    "memory_over_steps": lambda: plots.memory_over_steps({"x": [(1, 4), (2, 4)]}, 10),
    "capacity_curve": lambda: plots.capacity_curve({"m": 131_072}, 24 * 10**9, 3000),
    "timeline": lambda: plots.timeline(run(ContinuousBatching())),
    "latency_curve": lambda: plots.latency_curve({"a": [(1, 0.1), (2, 0.5)]}),
    "reused_blocks": lambda: plots.reused_blocks({"a": [True, False], "b": [False]}),
    "guesses": lambda: plots.guesses({"salt off": ([1.0, 2.0], [5.0, 6.0], 3.5)}),
    "key_outcomes": lambda: plots.key_outcomes([("a", "hit"), ("b", "leak")]),
    "false_hits": lambda: plots.false_hits({"one": [(0.3, 0.9, 0.5), (0.9, 0.1, 0.0)]}, 0.9),
    "freshness": lambda: plots.freshness({"alone": [(60, 0.1, 0.0), (3600, 0.8, 0.1)]}),
    "tradeoff": lambda: plots.tradeoff([(1, 60.0, 15.0), (8, 400.0, 20.0)], 8),
    "roofline": lambda: plots.roofline({"decode": (1, 1), "prefill": (300, 1)}, 1e14, 1e12),
    "kv_picture": widgets.kv_picture,
    "prefix_picture": widgets.prefix_picture,
    "key_picture": reuse.key_picture,
}


@pytest.mark.parametrize("name", PICTURES)
def test_picture_has_words_in_html_and_in_the_file(name, tmp_path):
    picture = PICTURES[name]()
    assert len(picture.alt) > 30 and picture.alt.endswith(".")
    assert repr(picture) == f"[figure] {picture.alt}"
    assert f'alt="{escape(picture.alt)}"' in picture.html() and "<figcaption" in picture.html()
    file = picture.save(tmp_path / "a folder" / "picture.png")
    content = file.read_bytes()
    width, height = struct.unpack(">II", content[16:24])
    assert content.startswith(b"\x89PNG") and width > 400 and height > 100
    assert picture.alt[:20].encode() in content


def test_words_are_escaped_in_html():
    html = plots.timelines({'<b>"static"</b>': run(StaticBatching(2))}).html()
    assert "<b>" not in html and "&lt;b&gt;" in html


def test_block_map_counts_shared_blocks_and_filled_slots():
    alt = PICTURES["block_map"]().alt
    assert "3 of 8 blocks of 16 tokens are used, 1 of them shared" in alt
    assert "21 of 48 slots" in alt  # 16 shared, 4 of a, 1 of b


def test_capacity_curve_marks_the_same_figure_as_the_estimate():
    assert "At 3,000 tokens each: m: 61" in PICTURES["capacity_curve"]().alt


def test_timeline_counts_what_the_log_holds():
    log = run(ContinuousBatching(token_budget=64, max_running=6), num_blocks=13, cancel="r5")
    alt = plots.timeline(log).alt
    steps = sum(isinstance(e, events.StepStarted) for e in log)
    rows = sum(len(e.rows) for e in log if isinstance(e, events.StepStarted))
    preempted = sum(isinstance(e, events.Preempted) for e in log)
    assert preempted > 0
    assert f"6 requests, {steps} steps in" in alt
    assert f"{rows / steps:.1f} requests per step" in alt
    assert f"{preempted} preemptions" in alt and "1 cut short" in alt


def test_timeline_draws_a_bar_for_every_step_that_a_request_ran():
    log = run(ContinuousBatching())
    history = plots.history._History(log)
    for id, row in history.rows.items():
        ran = sum(1 for e in log if isinstance(e, events.StepStarted) for r in e.rows if r[0] == id)
        assert ran > 0 and row.bars[0][2] and not row.bars[-1][2]  # prompt first, decode last
        starts = [bar[0] for bar in row.bars]
        assert starts == sorted(starts) and all(a < b for a, b, _ in row.bars)


def test_timeline_reads_a_saved_log_and_a_clock_that_stands_still():
    log = run(ContinuousBatching())
    again = events.load(events.to_json(event) for event in log)
    assert plots.timeline(again).alt == plots.timeline(log).alt
    engine = Engine(SimulatedExecutor(64, 16))
    engine.submit(words("only", 20, 3), 0.0)
    while engine.step(0.0):
        pass
    assert "1 requests, 3 steps, 1.0 requests per step" in plots.timeline(engine.log.events).alt


def test_timeline_of_an_empty_log_is_empty_and_no_error():
    assert "0 requests" in plots.timeline([]).alt


def test_plots_need_no_notebook_and_no_display():
    program = (
        "import sys; from minserve.learn import plots; plots.timeline([]).png(); "
        "print([m for m in ('IPython', 'ipywidgets', 'matplotlib.pyplot', 'torch') "
        "if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60
    )
    assert done.stdout.strip() == "[]", done.stderr


# -- widgets


def test_slider_changes_figure_sum_and_words():
    shown = widgets.kv_calculator()
    *controls, view = shown.widget.children
    before = view.value
    context = next(c for c in controls if c.description == "tokens per request")
    context.value = 6000
    assert view.value != before
    assert "131,072 &times; 6,000 tokens" in view.value and "<b>30 requests</b>" in view.value
    assert "At 6,000 tokens each: Llama-3.1-8B, float16: 30" in view.value


def test_calculator_holds_a_still_picture_for_viewers_without_widgets():
    data, _ = widgets.kv_calculator()._repr_mimebundle_()
    assert "application/vnd.jupyter.widget-view+json" in data
    assert "<img alt=" in data["text/html"] and data["text/plain"].startswith("[figure]")


def test_calculator_without_ipywidgets_is_a_picture(monkeypatch):
    real = builtins.__import__

    def no_widgets(name, *args, **kwargs):
        if name == "ipywidgets":
            raise ImportError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", no_widgets)
    assert isinstance(widgets.kv_calculator(), plots.Picture)


def test_roofline_says_on_which_side_of_the_ridge_each_work_lies():
    alt = PICTURES["roofline"]().alt
    assert "below 100 operations per byte" in alt
    assert "decode: 1.0, memory; prefill: 300.0, compute" in alt


def test_batch_slider_marks_the_size_it_stands_at():
    points = [(1, 60.0, 15.0), (8, 400.0, 20.0), (64, 2000.0, 25.0)]
    shown = widgets.batch_slider(points)
    slider, view = shown.widget.children
    assert "with 8 (marked), 400 tokens/s and 20 ms" in view.value
    slider.value = 64
    assert "with 64 (marked), 2,000 tokens/s and 25 ms" in view.value
    assert "with 8 (marked)" in shown.still.alt


@pytest.mark.parametrize(("position", "reused"), [(0, 0), (15, 0), (16, 1), (100, 6), (256, 15)])
def test_prefix_picture_reuses_the_whole_blocks_before_the_token_that_differs(position, reused):
    # At 256 nothing differs, and the last block is computed for its logits all the same.
    assert f"{reused} of 16" in widgets.prefix_picture(position).alt
