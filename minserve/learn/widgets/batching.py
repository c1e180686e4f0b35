"""An interactive picture of batching: lesson 2's lunch hour under any policy."""

from __future__ import annotations

from typing import Any

from minserve.learn.experiments.lesson2 import lunch_hour, simulate
from minserve.learn.plots import Picture, timeline
from minserve.learn.widgets import interactive
from minserve.scheduling.batching import ContinuousBatching, DynamicBatching, StaticBatching

POLICIES = ("static", "dynamic", "continuous")


def batch_picture(policy: str = "static", places: int = 4, report: int = 160) -> Picture:
    """Who is in each step, where the one long answer has `report` tokens; hal came last."""
    makes = {
        "static": lambda: StaticBatching(places),
        "dynamic": lambda: DynamicBatching(places, max_wait_s=0.5),
        "continuous": lambda: ContinuousBatching(max_running=places),
    }
    run = simulate(makes[policy](), lunch_hour(report))
    hal = run.requests[-1].timeline.e2e_s
    return timeline(
        run.events,
        f"{policy}, {places} places: hal's 10 tokens are there after {hal:.2f} s, "
        f"all after {run.span_s:.2f} s; {run.mean_rows:.1f} people in a step",
    )


def batch_explorer() -> Any:
    """Choose policy, places and the length of the report; without ipywidgets, one setting."""
    try:
        import ipywidgets as w
    except ImportError:
        return batch_picture()
    look = {
        "style": {"description_width": "14em"},
        "layout": w.Layout(width="40em"),
        "continuous_update": False,
    }
    controls = {
        "policy": w.ToggleButtons(options=POLICIES, value="static", description="policy"),
        "places": w.IntSlider(value=4, min=1, max=8, description="places", **look),
        "report": w.SelectionSlider(
            options=[10, 40, 160, 320], value=160, description="tokens of the report", **look
        ),
    }
    return interactive(controls, lambda **chosen: batch_picture(**chosen).html(), batch_picture())
