"""How fast this engine is, measured from its own events: what admission and step caps count on.

A step is taken to cost so much in itself, for each decode and for each prefill token. The three are
fitted to the latest steps, so idle time never counts.
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


class StepFit:
    """Least squares over the latest steps: seconds = fixed + decodes * each + prefill * each.

    Earlier steps fade by `keep`. The first guess stays in with a little weight: it decides only
    what the steps leave open, as when all of them are alike.
    """

    def __init__(self, guess: tuple[float, float, float], keep: float = 0.98) -> None:
        self._keep = keep
        self._guess, self._weights = guess, (0.01, 10.0, 10.0)
        self._squares = [[0.0] * 3 for _ in range(3)]
        self._products = [0.0] * 3
        self.costs = guess

    def add(self, num_decodes: int, num_prefill: int, took_s: float) -> None:
        x = (1.0, float(num_decodes), float(num_prefill))
        for i in range(3):
            self._products[i] = self._products[i] * self._keep + x[i] * took_s
            for j in range(3):
                self._squares[i][j] = self._squares[i][j] * self._keep + x[i] * x[j]
        self.costs = self._solve()

    def _solve(self) -> tuple[float, float, float]:
        """Gauss's elimination of the normal equations; they are positive definite by the guess."""
        rows = [[*self._squares[i], self._products[i]] for i in range(3)]
        for i, (weight, guess) in enumerate(zip(self._weights, self._guess, strict=True)):
            rows[i][i] += weight
            rows[i][3] += weight * guess
        for i in range(3):
            for j in range(i + 1, 3):
                share = rows[j][i] / rows[i][i]
                rows[j] = [b - share * a for a, b in zip(rows[i], rows[j], strict=True)]
        costs = [0.0] * 3
        for i in (2, 1, 0):
            known = sum(rows[i][j] * costs[j] for j in range(i + 1, 3))
            least = 1e-7 if i == 2 else 0.0  # here, so that the others make up for it
            costs[i] = max(least, (rows[i][3] - known) / rows[i][i])
        return costs[0], costs[1], costs[2]


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
        self._fit = StepFit((decode_step_s, 0.0, 1 / prefill_tokens_per_s))
        self._decodes = DecayingRatio(16.0)
        self._started: StepStarted | None = None
        self._num_cached_tokens = 0

    @property
    def tokens_per_s(self) -> float:
        """Tokens that the engine gets through in a second of work."""
        return self._throughput.value

    @property
    def prefill_tokens_per_s(self) -> float:
        return 1 / self._fit.costs[2]

    @property
    def decode_step_s(self) -> float:
        """Seconds that a step takes with as many decodes as of late, and no prefill."""
        return self._seconds(self._decodes.value)

    def tokens_within(self, step_s: float, num_decodes: int) -> int:
        """Prefill tokens that a step of `num_decodes` decodes can take in and end in `step_s`."""
        left_s = step_s - self._seconds(num_decodes)
        return max(0, int(left_s * self.prefill_tokens_per_s))

    def _seconds(self, num_decodes: float) -> float:
        fixed_s, decode_s, _ = self._fit.costs
        return fixed_s + num_decodes * decode_s

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
        self._fit.add(num_decodes, num_prefill, took_s)
        if num_decodes:
            self._decodes.add(num_decodes, 1)
