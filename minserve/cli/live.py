"""A line that shows how a load test stands: rates, tails and failures, a few times a second."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Self

from minserve.loadtest.measures import Tally
from minserve.loadtest.record import OK, Record
from minserve.metrics import percentile, seconds


class Live:
    """Feed it records; it draws on standard error while the block runs.

    The tail is that of the last 500 answers, so that it shows what happens now.
    """

    def __init__(self, total: int, label: str) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
        from rich.progress import TimeElapsedColumn as Elapsed

        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=20),
            MofNCompleteColumn(),
            Elapsed(),
            TextColumn("{task.fields[state]}"),
            console=Console(stderr=True),
            transient=True,
            auto_refresh=False,
        )
        self._task = self._bar.add_task(label, total=total, state="")
        self._label = label
        self._recent: deque[tuple[float, float]] = deque(maxlen=500)
        self._outcomes: Counter[str] = Counter()
        self._drawn_s = -1.0

    def __enter__(self) -> Self:
        self._bar.start()
        if not self._bar.console.is_terminal:
            self._bar.console.print(f"... {self._label}", highlight=False)
        return self

    def __exit__(self, *error: object) -> None:
        self._bar.stop()

    def add(self, record: Record) -> None:
        """Note one that has ended."""
        self._outcomes[record.outcome] += 1
        now_s = record.ended_s or 0.0
        if record.ttft_s is not None and record.outcome == OK:
            self._recent.append((now_s, record.ttft_s))
        if abs(now_s - self._drawn_s) >= 0.25:
            self._drawn_s = now_s
            self._draw()

    def _draw(self) -> None:
        ttfts = [ttft_s for _, ttft_s in self._recent]
        since_s = self._recent[-1][0] - self._recent[0][0] if len(self._recent) > 1 else 0.0
        rate = f"{(len(ttfts) - 1) / since_s:.3g}/s" if since_s > 0 else ""
        tail = f"TTFT p50 {seconds(percentile(ttfts, 0.5))} p99 {seconds(percentile(ttfts, 0.99))}"
        bad = ", ".join(f"{n} {name}" for name, n in self._outcomes.items() if name != OK)
        state = "  ".join(filter(None, (rate, tail, bad)))
        done = sum(self._outcomes.values())
        self._bar.update(self._task, completed=done, state=state, refresh=True)


class Watch(Live):
    """A `Live` that also counts into `tally`, and `keeps` records if they are to be saved."""

    def __init__(self, total: int, label: str, tally: Tally, keeps: bool) -> None:
        super().__init__(total, label)
        self.tally, self.keeps = tally, keeps
        self.records: list[Record] = []

    def add(self, record: Record) -> None:
        self.tally.add(record)
        if self.keeps:
            self.records.append(record)
        super().add(record)


@contextmanager
def stage(label: str) -> Iterator[None]:
    """Say on standard error what is being done, with a spinner where there is a terminal."""
    from rich.console import Console

    console = Console(stderr=True)
    if not console.is_terminal:
        console.print(f"... {label}", highlight=False)
        yield
        return
    with console.status(label):
        yield
