"""Progress of a command that takes minutes."""

from __future__ import annotations

from collections.abc import Callable

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
)


class Stages:
    """Progress on standard error: a line that says what runs now, and how far it is."""

    def __init__(self) -> None:
        self._bar = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=Console(stderr=True),
            transient=True,
            refresh_per_second=4,
        )
        self._all = self._bar.add_task("in all", total=None)
        self._task: TaskID | None = None

    def __enter__(self) -> Stages:
        self._bar.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._bar.stop()

    def begin(self, label: str, total: int | None) -> Callable[[int], None]:
        """Begin a stage; call the result with how many are done."""
        if not self._bar.console.is_terminal:
            self._bar.console.print(f"... {label}", highlight=False)
        if self._task is not None:
            self._bar.remove_task(self._task)
        self._bar.advance(self._all)
        task = self._task = self._bar.add_task(label, total=total)

        def show(num_done: int) -> None:
            self._bar.update(task, completed=num_done)

        return show
