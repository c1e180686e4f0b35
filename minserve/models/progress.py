"""A progress bar on standard error, for what takes more than a few seconds."""

from __future__ import annotations

import rich.progress
from rich.console import Console


class Progress:
    """One line at a time: a stage that only says it is busy, or one that counts bytes."""

    def __init__(self) -> None:
        self._bar = rich.progress.Progress(
            rich.progress.SpinnerColumn(),
            rich.progress.TextColumn("{task.description}"),
            rich.progress.BarColumn(),
            rich.progress.DownloadColumn(),
            rich.progress.TimeElapsedColumn(),
            console=Console(stderr=True),
            transient=True,
        )
        self._task: rich.progress.TaskID | None = None

    def __enter__(self) -> Progress:
        self._bar.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._bar.stop()

    def stage(self, description: str) -> None:
        """Begin a stage of unknown length."""
        if self._task is not None:
            self._bar.remove_task(self._task)
        self._task = self._bar.add_task(description, total=None)

    def bytes(self, done: int, total: int) -> None:
        """Say how far the stage has come."""
        assert self._task is not None  # a stage has begun
        self._bar.update(self._task, completed=done, total=total)
