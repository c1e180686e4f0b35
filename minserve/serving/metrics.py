"""Prometheus: vLLM's names where vLLM has one, `minserve_` for the rest.

Built from the engine's event log, and at each scrape from what the engine and admission hold just
then. Labels are bounded: model, workload class, priority, length bands, cache status, route. No
tenant, key or request is ever one. `docs/overload.md` lists every name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from minserve.cached_service import CachedService
from minserve.energy import EnergyMeter
from minserve.engine import Engine
from minserve.events import (
    Admitted,
    Event,
    Finished,
    Preempted,
    StepEnded,
    StepStarted,
    TokensProduced,
)
from minserve.metrics import band
from minserve.request import FinishReason, Request, WorkloadClass
from minserve.scheduling.admission import Admission, Admit, Decision, Defer, Refuse
from minserve.service import Attempt
from minserve.serving.trace import Trace, Traces

SECONDS = (
    *(0.001, 0.0025, 0.005, 0.01, 0.015, 0.025, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 0.75),
    *(1.0, 1.5, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0, 320.0),
)
COUNTS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768)


def level(priority: int) -> str:
    """A priority, roughly: one of three labels."""
    return "low" if priority < 0 else "high" if priority > 0 else "normal"


class Metrics:
    """All of one engine's metrics, in a registry of their own. `text` is what a scrape gets.

    `note` and `note_finished` belong to the engine's thread, the others to any. `note_http` is
    `HttpMetrics.note`.
    """

    content_type = "text/plain; version=0.0.4; charset=utf-8"

    def __init__(
        self,
        engine: Engine,
        traces: Traces,
        model_name: str,
        now_s: Callable[[], float],
        admission: Admission | None = None,
        cached: CachedService | None = None,
    ) -> None:
        self.registry = CollectorRegistry()
        self._traces = traces
        self._model = model_name
        self._step: StepStarted | None = None
        self._cancelled_s: list[float] = []
        self._make_requests()
        self._make_steps()
        self._make_doors()
        self.model_load_s = self._gauge("minserve_model_load_seconds", "Loading the model.")
        self.registry.register(_Now(engine, admission, model_name, now_s, cached))

    def text(self) -> bytes:
        """Everything, in Prometheus' text format."""
        return generate_latest(self.registry)

    # -- what there is

    def _histogram(self, name: str, text: str, labels=(), buckets=SECONDS) -> Histogram:
        made = Histogram(
            name, text, ("model_name", *labels), registry=self.registry, buckets=buckets
        )
        return made if labels else made.labels(self._model)

    def _counter(self, name: str, text: str, labels=()) -> Counter:
        made = Counter(name, text, ("model_name", *labels), registry=self.registry)
        return made if labels else made.labels(self._model)

    def _gauge(self, name: str, text: str) -> Gauge:
        return Gauge(name, text, ("model_name",), registry=self.registry).labels(self._model)

    def _make_requests(self) -> None:
        who, sizes = ("workload_class", "priority"), ("prompt_band", "cache")
        histogram, counter = self._histogram, self._counter
        self._queue_s = histogram(
            "vllm:request_queue_time_seconds", "Arrival to the first step.", who
        )
        self._ttft_s = histogram(
            "vllm:time_to_first_token_seconds", "Arrival to the first token.", (*who, *sizes)
        )
        self._itl_s = histogram(
            "vllm:inter_token_latency_seconds", "Gaps between tokens.", ("workload_class",)
        )
        self._tpot_s = histogram(
            "vllm:request_time_per_output_token_seconds",
            "Mean gap of one request.",
            (*who, "output_band"),
        )
        self._e2e_s = histogram(
            "vllm:e2e_request_latency_seconds", "Arrival to the end.", (*who, "output_band")
        )
        self._prefill_s = histogram(
            "vllm:request_prefill_time_seconds", "First step to the first token.", sizes
        )
        self._decode_s = histogram(
            "vllm:request_decode_time_seconds", "First token to the last.", ("output_band",)
        )
        self._prompt_sizes = histogram(
            "vllm:request_prompt_tokens", "Prompt tokens.", ("workload_class",), COUNTS
        )
        self._output_sizes = histogram(
            "vllm:request_generation_tokens", "Output tokens.", ("workload_class",), COUNTS
        )
        self._successes = counter(
            "vllm:request_success", "Requests that ended.", ("finished_reason", *who)
        )
        self._late = counter(
            "minserve_deadline_misses", "Ended after their deadline, or badly.", ("workload_class",)
        )
        self._due = counter(
            "minserve_deadlines", "Requests with a deadline that ended.", ("workload_class",)
        )

    def _make_steps(self) -> None:
        histogram, counter = self._histogram, self._counter
        self._prompt_tokens = counter(
            "vllm:prompt_tokens", "Prompt tokens of requests once answered."
        )
        self._output_tokens = counter("vllm:generation_tokens", "Tokens produced.")
        self._preemptions = counter("vllm:num_preemptions", "Requests that lost their blocks.")
        self._recomputed = counter(
            "minserve_recomputed_tokens", "Tokens computed again after a preemption."
        )
        self._step_tokens = histogram(
            "vllm:iteration_tokens_total", "Tokens in a step.", buckets=COUNTS
        )
        self._step_rows = histogram("minserve_step_rows", "Rows in a step.", buckets=COUNTS)
        self._step_s = histogram("minserve_step_seconds", "Duration of a step.")
        self._cancel_s = histogram(
            "minserve_cancel_seconds",
            "A cancel, until no step computes for it and blocks are back.",
        )

    def _make_doors(self) -> None:
        histogram, counter = self._histogram, self._counter
        self._decisions = counter(
            "minserve_admission_decisions",
            "What admission decided: admit, defer, or why it refused.",
            ("decision", "workload_class"),
        )
        self._admission_s = histogram(
            "minserve_admission_delay_seconds",
            "Arrival until admission decided.",
            ("workload_class",),
        )
        self.note_http = HttpMetrics(self.registry, self._model).note
        self._attempts = counter(
            "minserve_cascade_attempts",
            "Checked answers: passed, failed, or how they ended before they were whole.",
            ("route", "outcome"),
        )
        self._attempt_tokens = counter(
            "minserve_cascade_tokens", "Tokens of checked answers.", ("route", "kind")
        )

    # -- what happens

    def note(self, event: Event) -> None:
        """Take in one event of the engine's log."""
        match event:
            case StepStarted():
                self._step = event
            case StepEnded() if self._step is not None:
                self._note_step(self._step, event.time_s - self._step.time_s)
                for at_s in self._cancelled_s:
                    self._cancel_s.observe(event.time_s - at_s)
                self._step, self._cancelled_s = None, []
            case Finished(reason=FinishReason.CANCELLED.value):
                if self._step is None:
                    self._cancel_s.observe(0.0)
                else:  # the step in flight has its blocks
                    self._cancelled_s.append(event.time_s)
            case TokensProduced():
                self._note_tokens(event)
            case Preempted():
                self._preemptions.inc()
            case Admitted():
                trace = self._traces.find(event.request_id)
                if trace and trace.outcome.num_preemptions:
                    o = trace.outcome
                    held = o.num_prompt_tokens + o.num_output_tokens
                    self._recomputed.inc(max(0, held - event.num_cached_tokens))

    def _note_step(self, step: StepStarted, took_s: float) -> None:
        num_tokens = sum(count for _, count, _ in step.rows)
        self._step_tokens.observe(num_tokens)
        self._step_rows.observe(len(step.rows))
        self._step_s.observe(took_s)

    def _note_tokens(self, event: TokensProduced) -> None:
        """NOTE: the trace has taken this event in already: its last chunk is this one."""
        count = len(event.token_ids)
        self._output_tokens.inc(count)
        if (trace := self._traces.find(event.request_id)) is None:
            return
        chunks, kind = trace.outcome.chunks, trace.request.workload_class.value
        if len(chunks) > 1:
            gap_s, histogram = chunks[-1][0] - chunks[-2][0], self._itl_s.labels(self._model, kind)
            for _ in range(count):
                histogram.observe(gap_s / count)
        elif (ttft_s := trace.outcome.ttft_s) is not None:
            self._prompt_tokens.inc(trace.outcome.num_prompt_tokens)
            self._ttft_s.labels(self._model, *_who(trace), *_sizes(trace)).observe(ttft_s)

    def note_finished(self, trace: Trace) -> None:
        """Take in a request that has ended."""
        o, kind, who = trace.outcome, trace.request.workload_class.value, _who(trace)
        model, length = self._model, band(o.num_output_tokens)
        self._successes.labels(model, o.reason, *who).inc()
        if o.deadline_s is not None and o.reason != "cancelled":
            self._due.labels(model, kind).inc()
            self._late.labels(model, kind).inc(not o.met_deadline)
        if o.queue_delay_s is not None:
            self._queue_s.labels(model, *who).observe(max(0.0, o.queue_delay_s))
        if not o.is_ok:
            return  # an answer cut short would speed the figures up
        self._prompt_sizes.labels(model, kind).observe(o.num_prompt_tokens)
        self._output_sizes.labels(model, kind).observe(o.num_output_tokens)
        if o.chunks:
            first_s, last_s = o.chunks[0][0], o.chunks[-1][0]
            self._e2e_s.labels(model, *who, length).observe(last_s - o.arrival_s)
            self._decode_s.labels(model, length).observe(last_s - first_s)
            if o.admitted_s is not None:
                self._prefill_s.labels(model, *_sizes(trace)).observe(first_s - o.admitted_s)
        if o.tpot_s is not None:
            self._tpot_s.labels(model, *who, length).observe(o.tpot_s)

    def note_attempt(self, attempt: Attempt) -> None:
        """A model of a cascade has had its turn."""
        model, route = self._model, attempt.model
        self._attempts.labels(model, route, attempt.outcome).inc()
        self._attempt_tokens.labels(model, route, "prompt").inc(attempt.num_prompt_tokens)
        self._attempt_tokens.labels(model, route, "output").inc(attempt.num_output_tokens)

    def note_decision(self, request: Request, decision: Decision, now_s: float) -> None:
        """Admission has decided on `request`."""
        names, kind = {Admit: "admit", Defer: "defer"}, request.workload_class.value
        name = decision.code if isinstance(decision, Refuse) else names[type(decision)]
        self._decisions.labels(self._model, name, kind).inc()
        if not isinstance(decision, Defer):
            waited_s = max(0.0, now_s - request.arrival_s)
            self._admission_s.labels(self._model, kind).observe(waited_s)


class HttpMetrics:
    """What any HTTP front counts, a gateway without an engine as well."""

    def __init__(self, registry: CollectorRegistry, model_name: str) -> None:
        self._model = model_name
        self._answers = Counter(
            "minserve_http_requests",
            "HTTP answers.",
            ("model_name", "route", "status"),
            registry=registry,
        )
        self._seconds = Histogram(
            "minserve_http_request_seconds",
            "HTTP answers.",
            ("model_name", "route"),
            registry=registry,
            buckets=SECONDS,
        )
        self._retries = Counter(
            "minserve_client_retries",
            "Requests that say they are retries.",
            ("model_name",),
            registry=registry,
        )

    def note(self, route: str, status: int, took_s: float, is_retry: bool = False) -> None:
        """An HTTP request to `route` (its pattern, never the path) was answered."""
        self._answers.labels(self._model, route, str(status)).inc()
        self._seconds.labels(self._model, route).observe(took_s)
        self._retries.labels(self._model).inc(is_retry)


def _who(trace: Trace) -> tuple[str, str]:
    return trace.request.workload_class.value, level(trace.request.priority)


def _sizes(trace: Trace) -> tuple[str, str]:
    o = trace.outcome
    return band(o.num_prompt_tokens), "hit" if o.num_cached_tokens else "miss"


class _Now(Collector):
    """What the engine, its block pool and admission hold at the moment of a scrape."""

    def __init__(
        self,
        engine: Engine,
        admission: Admission | None,
        model_name: str,
        now_s: Callable[[], float],
        cached: CachedService | None,
    ) -> None:
        self._engine = engine
        self._now_s = now_s
        self._cached = cached
        self._admission = admission
        self._model = model_name
        self._energy = EnergyMeter()

    def collect(self) -> Iterator[GaugeMetricFamily | CounterMetricFamily]:
        """Read by whoever scrapes, while the engine runs: each figure true, together nearly so."""
        engine, pool = self._engine, self._engine.pool
        running = tuple(engine.scheduler.running)
        yield self._one("vllm:num_requests_running", "Requests that hold blocks.", len(running))
        num_waiting = len(engine.scheduler.waiting)
        yield self._one("vllm:num_requests_waiting", "Requests that wait.", num_waiting)
        if pool.num_blocks:  # NOTE: a gateway's engine is elsewhere, and so are its blocks
            yield from self._blocks(running)
        yield from self._prefix_cache()
        yield from self._admissions()
        yield from self._reuse()
        if joules := self._energy.joules():
            text = "Energy since the start: of CPU packages (RAPL), of GPUs (NVML)."
            energy = CounterMetricFamily(
                "minserve_energy_joules", text, labels=["model_name", "source"]
            )
            for source, value in joules.items():
                energy.add_metric([self._model, source], value)
            yield energy

    def _blocks(self, running: tuple[Request, ...]) -> Iterable[GaugeMetricFamily]:
        pool, used = self._engine.pool, dict.fromkeys(WorkloadClass, 0)
        for request in running:
            used[request.workload_class] += len(request.block_table)
        yield self._one(
            "vllm:kv_cache_usage_perc",
            "Share of KV blocks in use.",
            pool.num_used / pool.num_blocks,
        )
        states = {"free": pool.num_free, "used": pool.num_used, "cached": pool.num_cached}
        yield self._each("minserve_kv_blocks", "KV blocks by state.", "state", states)
        yield self._each(
            "minserve_kv_blocks_held",
            "KV blocks in the tables of running requests; a shared one counts for each.",
            "workload_class",
            used,
        )

    def _prefix_cache(self) -> Iterable[CounterMetricFamily]:
        if (cache := self._engine.prefix_cache) is None:
            return
        queried, hit = cache.num_queried_tokens, cache.num_hit_tokens
        yield self._count("vllm:prefix_cache_queries", "Tokens asked of the prefix cache.", queried)
        yield self._count("vllm:prefix_cache_hits", "Tokens that the prefix cache had.", hit)
        yield self._count(
            "minserve_evicted_blocks", "Cached blocks that were evicted.", cache.num_evicted_blocks
        )

    def _admissions(self) -> Iterable[GaugeMetricFamily]:
        if self._admission is None:
            return
        load, signals = self._admission.look(self._now_s()), self._admission.signals
        yield self._one("minserve_overload_rung", "0 is normal, 5 the highest.", load.rung)
        yield self._each(
            "minserve_queued_tokens", "Tokens that wait.", "workload_class", load.queued_tokens
        )
        yield self._each(
            "minserve_requests_unfinished",
            "Requests that were let in and have not ended.",
            "workload_class",
            load.num_unfinished,
        )
        yield self._one(
            "minserve_queue_age_seconds", "Age of the oldest online wait.", signals.queue_age_s
        )
        yield self._one(
            "minserve_queue_drain_seconds", "Seconds of online work that waits.", signals.drain_s
        )
        yield self._one(
            "minserve_deadline_risk", "Share of waiting deadlines at risk.", signals.deadline_risk
        )
        rates = load.rates
        yield self._one(
            "minserve_throughput_tokens_per_second", "Measured while busy.", rates.tokens_per_s
        )
        yield self._one(
            "minserve_decode_step_seconds", "A step of decodes alone.", rates.decode_step_s
        )

    def _reuse(self) -> Iterable[CounterMetricFamily]:
        lookups = CounterMetricFamily(
            "minserve_response_cache_lookups",
            "What look-ups came to: hit, miss, shared, or which check refused.",
            labels=["model_name", "cache", "answer_class", "outcome"],
        )
        outcomes = tuple(self._cached.outcomes.items()) if self._cached else ()
        for (kind, name, what), count in outcomes:
            lookups.add_metric([self._model, kind, name, what], count)
        yield lookups
        yield self._count(
            "minserve_response_cache_stale_hits",
            "Hits that a late event showed to have been stale.",
            self._cached.cache.num_stale_hits if self._cached else 0,
        )

    def _one(self, name: str, text: str, value: float) -> GaugeMetricFamily:
        family = GaugeMetricFamily(name, text, labels=["model_name"])
        family.add_metric([self._model], value)
        return family

    def _count(self, name: str, text: str, value: float) -> CounterMetricFamily:
        family = CounterMetricFamily(name, text, labels=["model_name"])
        family.add_metric([self._model], value)
        return family

    def _each(self, name: str, text: str, label: str, values: Mapping) -> GaugeMetricFamily:
        family = GaugeMetricFamily(name, text, labels=["model_name", label])
        for key, value in values.items():
            family.add_metric([self._model, str(key)], value)
        return family
