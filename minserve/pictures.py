"""A picture: a figure with a description in words. Plain matplotlib, no notebook, no display.

Colours are Okabe and Ito's (2008), told apart with every kind of colour vision; wherever colour
says something, a hatch, a letter or a place says it too.
"""

from __future__ import annotations

import base64
import io
from dataclasses import dataclass
from html import escape
from pathlib import Path

from matplotlib.figure import Figure

ORANGE, SKY, GREEN, YELLOW = "#E69F00", "#56B4E9", "#009E73", "#F0E442"
BLUE, VERMILION, PURPLE, BLACK = "#0072B2", "#D55E00", "#CC79A7", "#000000"
PALETTE = (BLUE, ORANGE, GREEN, PURPLE, SKY, VERMILION, YELLOW)
GREY, PALE = "#767676", "#E4E4E4"


@dataclass(frozen=True, slots=True)
class Picture:
    """A figure and what it shows, in words: `alt` in a sentence or two, for whoever cannot see it.

    In a notebook the words stand below the figure too.
    """

    figure: Figure
    alt: str

    def png(self, dpi: int = 110) -> bytes:
        """The figure as PNG; the description goes along in its metadata."""
        buffer = io.BytesIO()
        words = {"Description": self.alt, "Software": None}
        self.figure.savefig(buffer, format="png", dpi=dpi, metadata=words)
        return buffer.getvalue()

    def save(self, path: str | Path, dpi: int = 150) -> Path:
        """Write PNG, or whatever matplotlib takes the file's ending for."""
        path = Path(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.suffix == ".png":
            path.write_bytes(self.png(dpi))
        else:
            self.figure.savefig(path)
        return path

    def html(self) -> str:
        """An HTML figure: the image with its alternative text, and the same words as a caption."""
        data = base64.b64encode(self.png()).decode()
        width = round(self.figure.get_figwidth() * 80)
        words = escape(self.alt, quote=True)
        return (
            f'<figure style="margin:.3em 0;max-width:{width}px">'
            f'<img alt="{words}" style="max-width:100%;background:#fff" '
            f'src="data:image/png;base64,{data}">'
            f'<figcaption style="font-size:.85em;opacity:.85">{words}</figcaption></figure>'
        )

    def _repr_html_(self) -> str:
        return self.html()

    def __repr__(self) -> str:
        return f"[figure] {self.alt}"


def canvas(width: float = 9.0, height: float = 3.2) -> tuple:
    """A figure without pyplot (so without global state), and its axes."""
    figure, [ax] = panels(1, width, height)
    return figure, ax


def panels(rows: int, width: float, height: float) -> tuple:
    """A figure with `rows` axes one below the other, on one x axis."""
    figure = Figure(figsize=(width, height), layout="constrained", dpi=110)
    axes = figure.subplots(rows, 1, sharex=True, squeeze=False)[:, 0]
    for ax in axes:
        ax.spines[["top", "right"]].set_visible(False)
    return figure, axes
