"""What happened to each recent request, step by step, for whoever sent it.

A trace holds times and counts and no text. It may be read by its own scope, that is by callers of
its tenant who share its prefix-cache salt, and by operators; to everybody else it does not exist.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from minserve.events import (
    Admitted,
    Event,
    Finished,
    Preempted,
    StepEnded,
    StepStarted,
    Submitted,
    TokensProduced,
)
from minserve.metrics import Outcome, note
from minserve.request import Request
from minserve.service import Attempt

MAX_SPANS = 256
QUEUED, PREFILL, DECODE = "queued", "prefill", "decode"


@dataclass(slots=True)
class Span:
    """From `start_s` to `end_s` on the engine's clock: waiting, or part of `num_steps` steps."""

    kind: str
    start_s: float
    end_s: float
    num_tokens: int = 0
    num_steps: int = 0


@dataclass(slots=True)
class Trace:
    """One request: whose it is, its figures, and the spans of its life in order.

    With a cascade all that is the first model's, and `attempts` say who else was asked.
    """

    request: Request
    outcome: Outcome
    began_unix_s: float
    spans: list[Span] = field(default_factory=list)
    preempted_s: list[float] = field(default_factory=list)
    attempts: list[Attempt] = field(default_factory=list)
    last_step: int = -1

    @property
    def scope(self) -> tuple[str, str]:
        """Who may read it: callers of this tenant with this salt."""
        return self.request.identity.tenant, self.request.cache_salt

    def as_dict(self) -> dict[str, Any]:
        """For JSON: times in seconds since the request arrived."""
        o, start_s = self.outcome, self.outcome.arrival_s

        def since(time_s: float | None) -> float | None:
            return None if time_s is None else round(time_s - start_s, 6)

        return {
            "id": o.request_id,
            "object": "trace",
            "arrived_unix_s": round(self.began_unix_s, 3),
            "workload_class": self.request.workload_class.value,
            "priority": self.request.priority,
            "state": o.reason,
            "num_prompt_tokens": o.num_prompt_tokens,
            "num_cached_tokens": o.num_cached_tokens,
            "num_output_tokens": o.num_output_tokens,
            "num_preemptions": o.num_preemptions,
            "queue_delay_s": o.queue_delay_s,
            "ttft_s": o.ttft_s,
            "tpot_s": o.tpot_s,
            "e2e_s": o.e2e_s,
            "deadline_s": since(o.deadline_s),
            "finished_s": since(o.finished_s),
            "spans": [
                {
                    "kind": span.kind,
                    "start_s": since(span.start_s),
                    "end_s": since(span.end_s),
                    "num_tokens": span.num_tokens,
                    "num_steps": span.num_steps,
                }
                for span in self.spans
            ],
            "preempted_s": [since(time_s) for time_s in self.preempted_s],
            "attempts": [
                {
                    "model": attempt.model,
                    "outcome": attempt.outcome,
                    "start_s": since(attempt.began_s),
                    "end_s": since(attempt.ended_s),
                    "num_prompt_tokens": attempt.num_prompt_tokens,
                    "num_output_tokens": attempt.num_output_tokens,
                }
                for attempt in self.attempts
            ],
        }


class Traces:
    """The traces of all unfinished requests and of the last `max_kept` finished ones.

    `expect` may be called from any thread, before the request is submitted; `note` belongs to the
    engine's. `on_finished(trace)` is called there for each request that ends.
    """

    def __init__(
        self, max_kept: int = 512, on_finished: Callable[[Trace], None] = lambda trace: None
    ) -> None:
        self._max_kept = max_kept
        self._on_finished = on_finished
        self._traces: dict[str, Trace] = {}
        self._finished: deque[str] = deque()
        self._started: StepStarted | None = None

    def expect(self, request: Request, now_s: float) -> None:
        """`request` is about to be submitted; all its choices get a trace."""
        began_unix_s = time.time() - (now_s - request.arrival_s)
        for choice_id in request.choice_ids:
            outcome = Outcome(
                choice_id, request.arrival_s, request.deadline_s, request.num_prompt_tokens
            )
            self._traces[choice_id] = Trace(request, outcome, began_unix_s)

    def find(self, request_id: str) -> Trace | None:
        """The trace, without asking who wants it."""
        return self._traces.get(request_id)

    def read(self, request_id: str, tenant: str, salt: str, is_operator: bool) -> Trace | None:
        """The trace, if the caller may read it; None also if there is none."""
        trace = self._traces.get(request_id)
        is_own = trace is not None and trace.scope == (tenant, salt)
        return trace if is_own or is_operator else None

    def attempted(self, request: Request, attempt: Attempt) -> None:
        """One model of a cascade has had its turn at `request`."""
        if trace := self._traces.get(request.id):
            trace.attempts.append(attempt)

    def settle(self, request: Request) -> None:
        """Whoever sent `request` has its answer: drop the trace if it was never let in."""
        for choice_id in request.choice_ids:
            trace = self._traces.get(choice_id)
            if trace and trace.outcome.submitted_s is None:
                del self._traces[choice_id]

    def note(self, event: Event) -> None:
        """Take in one event of the engine's log."""
        if isinstance(event, StepStarted):
            self._started = event
        elif isinstance(event, StepEnded):
            if self._started is not None:
                self._note_step(self._started, event.time_s)
        elif trace := self._traces.get(getattr(event, "request_id", "")):
            self._note(trace, event)

    def _note(self, trace: Trace, event: Event) -> None:
        if isinstance(event, TokensProduced):  # what was said is nobody's business here
            event = TokensProduced(event.time_s, event.request_id, (0,) * len(event.token_ids))
        note(trace.outcome, event)
        match event:
            case Submitted():
                for choice_id in trace.request.choice_ids:
                    self._traces[choice_id].outcome.submitted_s = event.time_s
                self._add(trace, Span(QUEUED, trace.outcome.arrival_s, event.time_s))
            case Admitted() if trace.spans and trace.spans[-1].kind == QUEUED:
                trace.spans[-1].end_s = event.time_s
            case Preempted():
                trace.preempted_s.append(event.time_s)
                self._add(trace, Span(QUEUED, event.time_s, event.time_s))
            case Finished():
                if trace.spans and trace.spans[-1].kind == QUEUED:
                    trace.spans[-1].end_s = event.time_s
                self._finished.append(event.request_id)
                while len(self._finished) > self._max_kept:
                    self._traces.pop(self._finished.popleft(), None)
                self._on_finished(trace)

    def _note_step(self, step: StepStarted, end_s: float) -> None:
        for request_id, num_tokens, num_context_tokens in step.rows:
            if (trace := self._traces.get(request_id)) is None:
                continue
            is_prefill = num_context_tokens <= trace.outcome.num_prompt_tokens or num_tokens > 1
            kind, last = PREFILL if is_prefill else DECODE, trace.spans[-1] if trace.spans else None
            goes_on = last and kind == DECODE == last.kind and trace.last_step == step.step - 1
            trace.last_step = step.step
            if last and (goes_on or len(trace.spans) >= MAX_SPANS):
                last.end_s, last.num_steps = end_s, last.num_steps + 1
                last.num_tokens += num_tokens
            else:
                self._add(trace, Span(kind, step.time_s, end_s, num_tokens, 1))

    def _add(self, trace: Trace, span: Span) -> None:
        if len(trace.spans) < MAX_SPANS:
            trace.spans.append(span)


class Exporter:
    """Sends finished traces to OpenTelemetry, if its API is installed; an SDK is the operator's.

    Use as `on_finished`. `tracer` is one of `opentelemetry.trace.get_tracer`.
    """

    def __init__(self, tracer: Any) -> None:
        self._tracer = tracer

    @classmethod
    def if_installed(cls) -> Exporter | None:
        """An exporter, or None without opentelemetry-api."""
        try:
            from opentelemetry import trace
        except ImportError:
            return None
        return cls(trace.get_tracer("minserve"))

    def __call__(self, trace: Trace) -> None:
        """One span for the request, named as OpenTelemetry's conventions for generative AI have
        it, and one below it for each of its own."""
        from opentelemetry.trace import set_span_in_context

        told, zero_s = trace.as_dict(), trace.began_unix_s
        root = self._tracer.start_span("llm_request", start_time=_ns(zero_s))
        root.set_attributes(
            {
                "gen_ai.request.id": told["id"],
                "gen_ai.usage.input_tokens": told["num_prompt_tokens"],
                "gen_ai.usage.output_tokens": told["num_output_tokens"],
                "gen_ai.response.finish_reasons": (told["state"],),
                "minserve.workload_class": told["workload_class"],
                "minserve.num_preemptions": told["num_preemptions"],
            }
        )
        if told["ttft_s"] is not None:
            root.set_attribute("gen_ai.latency.time_to_first_token", told["ttft_s"])
        context = set_span_in_context(root)
        for span in told["spans"]:
            child = self._tracer.start_span(
                span["kind"], context, start_time=_ns(zero_s + span["start_s"])
            )
            child.set_attribute("minserve.num_tokens", span["num_tokens"])
            child.end(_ns(zero_s + span["end_s"]))
        root.end(_ns(zero_s + (told["finished_s"] or 0.0)))


def _ns(time_s: float) -> int:
    return int(time_s * 1e9)
