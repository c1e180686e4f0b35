"""Pictures, each with a description in words. Plain matplotlib: no notebook and no display needed.

A file per subject; everything can be had from here in one line, `plots.timeline(events)`.

Every function returns a `Picture`: the last value of a notebook cell shows it, `save` writes it.
Colours are Okabe and Ito's (2008), told apart with every kind of colour vision; wherever colour
says something, a hatch, a letter or a place says it too.
"""

from minserve.learn.plots.blocks import block_map, capacity_curve, memory_over_steps, waste_bars
from minserve.learn.plots.history import timeline, timelines
from minserve.learn.plots.latency import latency_curve, roofline, tradeoff
from minserve.learn.plots.load import hockey_stick, kept_waiting, queue_curve, redelivery, rungs
from minserve.learn.plots.prefixes import guesses, reused_blocks
from minserve.learn.plots.reuse import false_hits, freshness, key_outcomes
from minserve.pictures import Picture

__all__ = [
    "Picture",
    "block_map",
    "capacity_curve",
    "false_hits",
    "freshness",
    "guesses",
    "key_outcomes",
    "hockey_stick",
    "kept_waiting",
    "latency_curve",
    "memory_over_steps",
    "queue_curve",
    "redelivery",
    "reused_blocks",
    "roofline",
    "rungs",
    "timeline",
    "timelines",
    "tradeoff",
    "waste_bars",
]
