"""How fast this engine is, measured from its own events: what admission and step caps count on.

A step is taken to cost `decode_step_s` if it decodes, plus its prefill tokens at
`prefill_tokens_per_s`. Both are decaying averages over steps, so idle time never counts.
"""

from __future__ import annotations

from minserve.events import Admitted, Event, StepEnded, StepStarted


class DecayingRatio:
    """Sum of `amount` over sum of `per`, where each new sample fades the earlier ones."""

    def __init__(self, first: float, keep: float = 0.95) -> None:
        self._keep = keep
        self._amount, self._per = first * 1e-9, 1e-9  # a guess that the first sample outweighs

    def add(self, amount: float, per: float) -> None:
        self._amount = self._amount * self._keep + amount
        self._per = self._per * self._keep + per

    @property
    def value(self) -> float:
        return self._amount / self._per


class Rates:
    """Listens to an engine's log: `log.listen(rates.note)`. The arguments are first guesses.

    `tokens_per_s` counts what leaves the queue and the decodes: computed and cached tokens alike.
    """

    def __init__(
        self,
        tokens_per_s: float = 1_000.0,
        prefill_tokens_per_s: float = 2_000.0,
        decode_step_s: float = 0.02,
    ) -> None:
        self._throughput = DecayingRatio(tokens_per_s)
        self._prefill_token_s = DecayingRatio(1 / prefill_tokens_per_s)
        self._decode_step_s = DecayingRatio(decode_step_s)
        self._started: StepStarted | None = None
        self._num_cached_tokens = 0

    @property
    def tokens_per_s(self) -> float:
        """Tokens that the engine gets through in a second of work."""
        return self._throughput.value

    @property
    def prefill_tokens_per_s(self) -> float:
        return 1 / self._prefill_token_s.value

    @property
    def decode_step_s(self) -> float:
        """Seconds that a step of decodes alone takes: the gap between two tokens of an answer."""
        return self._decode_step_s.value

    def tokens_within(self, step_s: float, num_decodes: int) -> int:
        """Prefill tokens that a step of `num_decodes` decodes can take in and end in `step_s`."""
        left_s = step_s - (self.decode_step_s if num_decodes else 0.0)
        return max(0, int(left_s * self.prefill_tokens_per_s))

    def note(self, event: Event) -> None:
        """Take in one event of the engine's log."""
        if isinstance(event, StepEnded):
            if self._started is not None:
                self._note_step(self._started, event.time_s - self._started.time_s)
        elif isinstance(event, StepStarted):
            self._started = event
        elif isinstance(event, Admitted):
            self._num_cached_tokens += event.num_cached_tokens

    def _note_step(self, step: StepStarted, took_s: float) -> None:
        num_tokens = sum(count for _, count, _ in step.rows)
        num_decodes = sum(count == 1 for _, count, _ in step.rows)
        num_prefill = num_tokens - num_decodes
        if took_s <= 0:
            return
        self._throughput.add(num_tokens + self._num_cached_tokens, took_s)
        self._num_cached_tokens = 0
        if not num_prefill:
            self._decode_step_s.add(took_s, 1)
        else:  # NOTE: at least a quarter is prefill's, however wrong the guess of the decodes is
            decode_s = self.decode_step_s if num_decodes else 0.0
            self._prefill_token_s.add(max(took_s - decode_s, took_s / 4), num_prefill)
