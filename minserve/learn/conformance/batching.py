"""What the suites of the three batching policies share: small views, and questions to ask of them.

A suite asks a policy about every view of up to three waiting and two running requests, from the
smallest upwards, so the counterexample it shows is the smallest that there is among them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import product
from typing import Any

from minserve.learn.conformance import BrokenRule, returned, showing
from minserve.learn.policies import Seen, View, Wait

Policy = Callable[..., Any]


def reader(name: str, num_tokens: int, arrival_s: float = 0.0) -> Seen:
    """A request that has `num_tokens` of prompt to read, and needs as much memory."""
    return Seen(name, arrival_s, num_tokens, num_tokens)


def writer(name: str, num_to_hold: int = 0) -> Seen:
    """A running request that writes a token in every step."""
    return Seen(name, 0.0, 1, num_to_hold)


def halfway(name: str, num_left: int) -> Seen:
    """A running request that has `num_left` tokens of its prompt still to read."""
    return Seen(name, 0.0, num_left, 0)


class Asked:
    """One question to a policy, written down for whoever has to read the counterexample."""

    def __init__(
        self,
        policy: Policy,
        settings: Mapping[str, float],
        running: Sequence[Seen] = (),
        waiting: Sequence[Seen] = (),
        free_tokens: int = 1000,
        now_s: float = 0.0,
    ) -> None:
        self.view = View(now_s, tuple(running), tuple(waiting), free_tokens)
        self.lines = [
            *(f"running: {_describe(r)}" for r in running),
            *(f"waiting: {_describe(r)}" for r in waiting),
            f"free_tokens = {free_tokens}, now_s = {now_s:g}",
            f"settings: {', '.join(f'{k} = {v:g}' for k, v in settings.items())}",
        ]
        with showing(self.lines):
            self.answer = policy(self.view, **settings)
        self.lines.append(f"answer: {_describe_answer(self.answer)}")
        self.run = self._read()

    @property
    def tokens(self) -> dict[str, int]:
        """How many tokens each request of the answer computes."""
        return {request.id: num_tokens for request, num_tokens in self.run}

    def fail(self, what: str) -> None:
        """The rule is broken."""
        raise BrokenRule(what, self.lines)

    def expect(self, *wanted: tuple[str, int], because: str) -> None:
        """The answer must be these (id, num_tokens), in this order."""
        found = [(request.id, num_tokens) for request, num_tokens in self.run]
        if found != list(wanted):
            self.fail(f"{because}: {_list(wanted)} expected, not {_list(found)}")

    def _read(self) -> list[tuple[Seen, int]]:
        if isinstance(self.answer, Wait):
            return []
        if not isinstance(self.answer, (list, tuple)):
            self.fail(f"a list of (request, num_tokens) is wanted; this is {returned(self.answer)}")
        known = {request.id: request for request in (*self.view.running, *self.view.waiting)}
        pairs = []
        for item in self.answer:
            if not isinstance(item, (list, tuple)) or len(item) != 2:
                self.fail(f"each entry is a pair (request, num_tokens); this is {item!r:.60}")
            request, num_tokens = item
            if known.get(getattr(request, "id", "")) is not request:
                self.fail(f"only requests of the view can run, not {request!r:.60}")
            if type(num_tokens) is not int or num_tokens < 1:
                self.fail(f"{request.id} gets {num_tokens!r} tokens: give 1 or more, or leave it")
            pairs.append((request, num_tokens))
        if len({request.id for request, _ in pairs}) < len(pairs):
            self.fail("a request is listed twice")
        return pairs


def queues(lengths: Sequence[int], most: int) -> Iterator[list[Seen]]:
    """Every queue of up to `most` requests whose prompts have one of these lengths."""
    for count in range(most + 1):
        for chosen in product(lengths, repeat=count):
            yield [reader(name, length) for name, length in zip("abcd", chosen, strict=False)]


def _describe(request: Seen) -> str:
    verb = "reads" if request.is_prefill else "writes"
    memory = f", needs {request.num_to_hold} tokens of memory" if request.num_to_hold else ""
    came = f", came at {request.arrival_s:g} s" if request.arrival_s else ""
    return f"{request.id} {verb} ({request.num_to_compute} to compute{memory}{came})"


def _describe_answer(answer: Any) -> str:
    if isinstance(answer, (list, tuple)):
        try:
            return _list([(request.id, num_tokens) for request, num_tokens in answer])
        except (AttributeError, TypeError, ValueError):
            pass
    return f"{answer!r:.80}"


def _list(pairs: Sequence[tuple[str, int]]) -> str:
    return "[" + ", ".join(f"({name}, {num_tokens})" for name, num_tokens in pairs) + "]"
