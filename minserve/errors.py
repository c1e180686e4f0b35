"""Every error a user of minserve can reach.

``str(error)`` is one clear line: what was wrong, and with which value. ``error.hint`` is one line
that says what to do about it. The command line prints both and exits with code 2.
"""

from __future__ import annotations


class MinserveError(Exception):
    """Base of all minserve errors.

    Args:
        message: What was wrong, with the offending value.
        hint: What the reader can do about it; empty where there is nothing to add.
    """

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint

    def __reduce__(self):
        # NOTE: Exception pickles from args alone; the hint must survive a process boundary too.
        return _rebuild, (type(self), str(self), self.hint)


def _rebuild(cls: type[MinserveError], message: str, hint: str) -> MinserveError:
    return cls(message, hint=hint)


class InvalidRequest(MinserveError):
    """A field of the request is out of range, for example ``max_tokens`` below 1."""


class RequestTooLarge(InvalidRequest):
    """The request can never run: it exceeds the model's context or the whole block pool."""


class OutOfBlocks(MinserveError):
    """No block is free right now. Nothing was changed; preempt, evict or wait, then try again."""


class BlockError(MinserveError):
    """A block was misused: released twice, unknown to the pool, or written while shared."""


class ModelNotFound(MinserveError):
    """No model goes by that name, folder or id."""


class WeightsMissing(MinserveError):
    """The model is known, but its weights are absent, incomplete or fail their checksum."""


class UnsupportedModel(MinserveError):
    """The model exists, but its architecture or weight format is not one that minserve runs."""


class DataNotFound(MinserveError):
    """A data file is absent (Northstar, traces, a recorded run)."""


class ConfigError(MinserveError):
    """A setting is invalid, or two settings contradict each other."""


class ExecutorFailed(MinserveError):
    """A step could not be computed. Every request it was to serve has ended with an error."""
