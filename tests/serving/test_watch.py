"""What the server shows of itself: true figures, bounded labels, and nothing of a neighbour."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from live_server import Live, wait_for
from prometheus_client.parser import text_string_to_metric_families
from support import ask, content_engine, drain

from minserve.cached_service import CachedService
from minserve.energy import EnergyMeter
from minserve.metrics import band
from minserve.northstar.caching import policy_table
from minserve.request import WorkloadClass
from minserve.reuse.key import ModelTuple
from minserve.reuse.response import ExactCache
from minserve.reuse.stores import MemoryStore
from minserve.scheduling.admission import Admission
from minserve.scheduling.overload import LadderState, Rung
from minserve.serving.identity import ApiKey, KeyRing, hash_of
from minserve.serving.live import Rate
from minserve.serving.metrics import Metrics
from minserve.serving.trace import DECODE, PREFILL, QUEUED, Exporter, Traces

ROOT = Path(__file__).resolve().parents[2]
TEXT = "/v1/completions"


def key(name: str, tenant: str, *roles: str) -> ApiKey:
    return ApiKey(name, hash_of(name), tenant, name, roles)


@pytest.fixture(scope="module")
def guarded():
    """A server with keys of two tenants and an operator, and admission."""
    keys = [key("ann", "a"), key("abe", "a"), key("bob", "b"), key("ops", "o", "operator")]
    with Live(keys=KeyRing(keys), admission=Admission) as server:
        yield server
        server.wait_idle()


def ask_server(live: Live, secret: str, prompt: str = "hello", max_tokens: int = 4) -> str:
    body = {"prompt": prompt, "max_tokens": max_tokens}
    response = live.post(TEXT, body, secret)
    assert response.status_code == 200, response.text
    return response.json()["id"]


def scrape(live: Live, secret: str = "ops") -> dict[str, list]:
    """Samples by name."""
    found: dict[str, list] = {}
    for family in text_string_to_metric_families(live.get("/metrics", secret).text):
        for sample in family.samples:
            found.setdefault(sample.name, []).append(sample)
    return found


def total(samples: dict[str, list], name: str, **labels: str) -> float:
    return sum(
        sample.value
        for sample in samples.get(name, [])
        if all(sample.labels.get(label) == value for label, value in labels.items())
    )


# -- metrics


def test_metrics_count_what_happened(guarded):
    before = scrape(guarded)
    for n in range(3):
        ask_server(guarded, "ann", f"prompt {n}", 4)

    def grown(name: str, **labels: str) -> float:
        return total(scrape(guarded), name, **labels) - total(before, name, **labels)

    assert grown("vllm:request_success_total", finished_reason="length") == 3
    assert grown("vllm:generation_tokens_total") == 12
    assert grown("vllm:prompt_tokens_total") == 3 * len("prompt 0")
    assert grown("vllm:time_to_first_token_seconds_count") == 3
    assert grown("vllm:inter_token_latency_seconds_count") == 3 * 3
    assert grown("vllm:e2e_request_latency_seconds_count", output_band="<=64") == 3
    assert grown("minserve_admission_decisions_total", decision="admit") == 3
    assert grown("minserve_http_requests_total", route=TEXT, status="200") == 3
    assert total(scrape(guarded), "vllm:num_requests_running") == 0


def test_blocks_add_up(guarded):
    samples = scrape(guarded)
    states = {s.labels["state"]: s.value for s in samples["minserve_kv_blocks"]}
    assert set(states) == {"free", "used", "cached"} and sum(states.values()) == 1024


def test_labels_are_bounded_and_name_nobody(guarded):
    request_id = ask_server(guarded, "ann")
    text = guarded.get("/metrics", "ops").text
    names = {
        name
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        for name in sample.labels
    }
    assert names <= {
        *("model_name", "workload_class", "priority", "prompt_band", "output_band", "cache"),
        *("finished_reason", "decision", "route", "status", "state", "le"),
    }
    for secret in ("ann", "abe", "bob", '"a"', '"b"', request_id, "hello"):
        assert secret not in text


def test_a_route_is_a_pattern_never_a_path(guarded):
    guarded.get("/v1/traces/some-secret-name", "ann")
    guarded.get("/no/such/path", "ann")
    text = guarded.get("/metrics", "ops").text
    assert "some-secret-name" not in text and "/no/such/path" not in text
    assert 'route="/v1/traces/{request_id}"' in text and 'route="other"' in text


def test_buckets_begin_at_a_millisecond(guarded):
    ask_server(guarded, "ann")
    samples = scrape(guarded)["vllm:time_to_first_token_seconds_bucket"]
    assert min(float(s.labels["le"]) for s in samples) == 0.001


def test_metrics_are_for_operators(guarded):
    assert guarded.get("/metrics", "ann").status_code == 403
    assert guarded.get("/metrics").status_code == 401
    assert guarded.get("/live", "ann").status_code == 200
    assert guarded.get("/live").status_code == 401


def test_a_retry_is_counted(guarded):
    before = total(scrape(guarded), "minserve_client_retries_total")
    body = {"prompt": "x", "max_tokens": 1}
    guarded.post(TEXT, body, "ann", x_stainless_retry_count="0")
    guarded.post(TEXT, body, "ann", x_stainless_retry_count="1")
    assert total(scrape(guarded), "minserve_client_retries_total") - before == 1


def engine_with_metrics(**options):
    engine = content_engine(**options)
    traces = Traces()
    metrics = Metrics(engine, traces, "m", lambda: 0.0)
    traces._on_finished = metrics.note_finished
    engine.log.listen(traces.note)
    engine.log.listen(metrics.note)

    def value(name: str, **labels: str) -> float:
        return metrics.registry.get_sample_value(name, {"model_name": "m", **labels}) or 0.0

    return engine, traces, value


def test_preemption_and_recomputation_are_counted():
    engine, traces, value = engine_with_metrics(num_blocks=6, block_size=2)
    requests = [ask(f"r{n}", 4, 8) for n in range(3)]
    for request in requests:
        traces.expect(request, 0.0)
        engine.submit(request, 0.0)
    drain(engine)
    num = sum(request.num_preemptions for request in requests)
    assert num and value("vllm:num_preemptions_total") == num
    assert value("minserve_recomputed_tokens_total") > 0
    assert value("vllm:generation_tokens_total") == 24


def test_a_missed_deadline_and_a_bad_end_are_counted_and_speed_nothing_up():
    engine, traces, value = engine_with_metrics()
    late, gone = ask("late", 4, 3, deadline_s=1.5), ask("gone", 4, 30)
    for request in (late, gone):
        traces.expect(request, 0.0)
        engine.submit(request, 0.0)
    for now_s in (1.0, 2.0, 3.0):
        engine.step(now_s)
    engine.cancel("gone", 4.0)
    drain(engine, 4.0)
    kind = {"workload_class": "standard"}
    assert value("minserve_deadlines_total", **kind) == 1
    assert value("minserve_deadline_misses_total", **kind) == 1
    who = {**kind, "priority": "normal"}
    assert value("vllm:request_success_total", finished_reason="cancelled", **who) == 1
    assert value("vllm:e2e_request_latency_seconds_count", output_band="<=64", **who) == 1


def test_a_cancel_takes_until_the_step_in_flight_has_ended():
    engine, _, value = engine_with_metrics()
    for name in ("waits", "runs"):
        engine.submit(ask(name, 4, 30), 0.0)
    engine.cancel("waits", 0.5)
    assert value("minserve_cancel_seconds_count") == 1
    assert value("minserve_cancel_seconds_sum") == 0
    engine.begin_step(1.0)
    engine.cancel("runs", 1.25)
    assert value("minserve_cancel_seconds_count") == 1
    engine.finish_step(1.5)
    assert value("minserve_cancel_seconds_count") == 2
    assert value("minserve_cancel_seconds_sum") == 0.25


def test_energy_is_told_by_its_source_and_only_where_it_is_counted(monkeypatch):
    engine, _, value = engine_with_metrics()
    assert value("minserve_energy_joules_total", source="RAPL") == 0
    monkeypatch.setattr(EnergyMeter, "joules", lambda self: {"RAPL": 3.5, "NVML": 40.0})
    assert value("minserve_energy_joules_total", source="RAPL") == 3.5
    assert value("minserve_energy_joules_total", source="NVML") == 40.0


@pytest.mark.parametrize(("length", "label"), [(1, "<=64"), (64, "<=64"), (65, "<=256")])
def test_bands(length, label):
    assert band(length) == label


# -- Grafana


def test_every_metric_that_the_dashboard_asks_for_exists(guarded):
    dashboard = json.loads((ROOT / "docs/dashboards/minserve-grafana.json").read_text("utf-8"))
    queries = [
        target["expr"] for panel in dashboard["panels"] for target in panel.get("targets", [])
    ]
    asked = {name for query in queries for name in re.findall(r"\b(?:vllm|minserve)[:_]\w+", query)}
    ask_server(guarded, "ann")
    there = {
        name + end
        for name, kind in metrics_of(guarded).items()
        for end in (("_bucket", "_sum", "_count") if kind == "histogram" else ("",))
    }
    assert len(queries) > 10 and asked <= there, asked - there


def test_the_documentation_lists_exactly_the_metrics_that_exist(guarded):
    text = (ROOT / "docs" / "overload.md").read_text("utf-8")
    table = text.split("## Metrics")[1].split("\nRequests per machine-hour")[0]
    listed = set(re.findall(r"`((?:vllm|minserve)[:_]\w+)`", table))
    assert listed - {"minserve_energy_joules_total"} == set(metrics_of(guarded)) - {
        "minserve_energy_joules_total"  # only where the CPU tells
    }


def metrics_of(live: Live) -> dict[str, str]:
    """Kinds by name, without prometheus-client's own times of creation."""
    lines = live.get("/metrics", "ops").text.splitlines()
    found = dict(
        match.groups() for line in lines if (match := re.match(r"# TYPE (\S+) (\w+)", line))
    )
    return {name: kind for name, kind in found.items() if not name.endswith("_created")}


# -- traces


def test_a_trace_tells_the_life_of_a_request_in_order(guarded):
    request_id = ask_server(guarded, "ann", "x" * 600, 5)
    told = guarded.get(f"/v1/traces/{request_id}", "ann").json()
    wait_for(lambda: len(guarded.get(f"/v1/traces/{request_id}", "ann").json()["spans"]) >= 4)
    told = guarded.get(f"/v1/traces/{request_id}", "ann").json()
    spans = told["spans"]
    assert [span["kind"] for span in spans] == [QUEUED, PREFILL, PREFILL, DECODE]
    assert [span["num_tokens"] for span in spans] == [0, 512, 88, 4]
    ends = [time_s for span in spans for time_s in (span["start_s"], span["end_s"])]
    assert ends == sorted(ends)
    assert (told["num_prompt_tokens"], told["num_output_tokens"], told["state"]) == (
        *(600, 5),
        "length",
    )
    assert "xxx" not in json.dumps(told)


def test_a_trace_is_its_own_scopes_and_the_operators(guarded):
    request_id = ask_server(guarded, "ann")
    path = f"/v1/traces/{request_id}"
    assert guarded.get(path, "ann").status_code == 200
    assert guarded.get(path, "abe").status_code == 200  # the default scope is the tenant
    assert guarded.get(path, "ops").status_code == 200
    strange, missing = guarded.get(path, "bob"), guarded.get("/v1/traces/none", "bob")
    assert strange.status_code == missing.status_code == 404
    assert (
        strange.json()["error"]["message"].replace(request_id, "none")
        == (missing.json()["error"]["message"])
    )


def test_a_request_that_was_not_let_in_leaves_no_trace(guarded):
    with Live(num_blocks=4, max_model_len=8192) as small:
        response = small.post(TEXT, {"prompt": "x" * 500, "max_tokens": 5})
        assert response.status_code >= 400
        small.wait_idle()
        assert not small.server.watch.traces._traces


def test_traces_are_bounded_and_keep_no_text():
    engine = content_engine()
    traces = Traces(max_kept=3)
    engine.log.listen(traces.note)
    for n in range(10):
        request = ask(f"r{n}")
        traces.expect(request, 0.0)
        engine.submit(request, 0.0)
        drain(engine)
    assert sorted(traces._traces) == ["r7", "r8", "r9"]
    assert set(traces.find("r9").outcome.token_ids) == {0}


def test_a_preemption_is_a_second_wait():
    engine = content_engine(num_blocks=6, block_size=2)
    traces = Traces()
    engine.log.listen(traces.note)
    requests = [ask(f"r{n}", 4, 8) for n in range(3)]
    for request in requests:
        traces.expect(request, 0.0)
        engine.submit(request, 0.0)
    drain(engine)
    victim = next(request for request in requests if request.num_preemptions)
    trace = traces.find(victim.id)
    kinds = [span.kind for span in trace.spans]
    assert kinds.count(QUEUED) == 1 + victim.num_preemptions == 1 + len(trace.preempted_s)


def test_each_choice_has_a_trace():
    engine = content_engine(num_blocks=64)
    traces = Traces()
    engine.log.listen(traces.note)
    request = ask("r", 8, 4, sampling={"n": 3, "temperature": 1.0})
    traces.expect(request, 0.0)
    engine.submit(request, 0.0)
    drain(engine)
    for choice_id in request.choice_ids:
        assert traces.find(choice_id).outcome.is_ok
        assert DECODE in [span.kind for span in traces.find(choice_id).spans]


class Span:
    def __init__(self, name, start_ns):
        self.name, self.start_ns, self.attributes = name, start_ns, {}

    def set_attributes(self, attributes):
        self.attributes |= attributes

    def set_attribute(self, name, value):
        self.attributes[name] = value

    def end(self, end_ns):
        self.end_ns = end_ns


class Tracer:
    def __init__(self):
        self.spans = []

    def start_span(self, name, context=None, start_time=None):
        self.spans.append(Span(name, start_time))
        return self.spans[-1]


def test_a_finished_trace_is_exported_as_spans():
    pytest.importorskip("opentelemetry.trace")
    engine, tracer = content_engine(), Tracer()
    traces = Traces(on_finished=Exporter(tracer))
    engine.log.listen(traces.note)
    request = ask("r", 8, 4)
    traces.expect(request, 0.0)
    engine.submit(request, 0.0)
    drain(engine)
    root, *children = tracer.spans
    assert root.attributes["gen_ai.usage.output_tokens"] == 4
    assert [child.name for child in children][:2] == [QUEUED, PREFILL]
    assert all(root.start_ns <= child.start_ns <= child.end_ns for child in children)


# -- the live picture and the rung


def test_the_live_picture_holds_sums_and_no_names(guarded):
    request_id = ask_server(guarded, "ann")
    text = guarded.get("/live", "bob").text
    picture = json.loads(text)
    blocks = picture["blocks"]
    assert blocks["used"] + blocks["cached"] + blocks["free"] == blocks["total"] == 1024
    assert picture["running"] == picture["waiting"] == 0
    for secret in (request_id, "ann", "hit", "prefix", "tenant"):
        assert secret not in text


def test_what_caches_found_is_in_the_live_picture_of_operators_alone():
    keys = KeyRing(
        ApiKey(name, hash_of(name), name, name, ("operator",) if name == "ops" else ())
        for name in ("ann", "ops")
    )

    def wrap(service):
        return CachedService(service, ExactCache(MemoryStore(), policy_table()), ModelTuple("m"))

    body = {"prompt": "w", "temperature": 0, "stop": "f", "max_tokens": 20}
    with Live(keys=keys, wrap=wrap) as live:
        for _ in range(3):
            assert live.post("/v1/completions", body, "ann").status_code == 200
        told = live.get("/live", "ops").json()["reuse"]
        assert told == {
            "caches": {"exact": {"asked": 3, "answered": 2}},
            "stale_hits": 0,
            "cascade": {},
        }
        assert "reuse" not in live.get("/live", "ann").json()


def test_the_rung_is_told_in_every_answer_in_health_and_in_the_metrics():
    with Live(admission=Admission) as live:
        assert "x-minserve-rung" not in live.get("/version").headers
        admission = live.server.engine.service.admission
        admission.ladder_state = LadderState(Rung.SHORTEN_OUTPUT)
        answer = live.post(TEXT, {"prompt": "x", "max_tokens": 1})
        assert answer.headers["x-minserve-rung"] == "2 shorten output"
        assert live.get("/health").json()["load"] == "shorten output"
        samples = scrape(live, "")
        assert total(samples, "minserve_overload_rung") == 2


def test_a_high_rung_never_lets_a_bad_key_or_a_bad_body_through(guarded):
    admission = guarded.server.engine.service.admission
    try:
        for rung in Rung:
            admission.ladder_state = LadderState(rung)
            assert guarded.post(TEXT, {"prompt": "x"}, "nobody").status_code == 401
            assert guarded.post(TEXT, {"prompt": "x", "top_p": 7}, "ann").status_code == 400
            body = {"prompt": "x", "cache_salt": "b"}
            assert guarded.post(TEXT, body, "ann").status_code == 400
            assert guarded.get("/metrics", "ann").status_code == 403
    finally:
        admission.ladder_state = LadderState()


def test_low_priority_work_gets_a_shorter_answer_and_then_a_time_to_return(guarded):
    admission = guarded.server.engine.service.admission
    body = {"prompt": "x", "max_tokens": 100, "service_tier": "flex"}
    try:
        admission.ladder_state = LadderState(Rung.SHORTEN_OUTPUT)
        answer = guarded.post(TEXT, body, "ann").json()
        assert answer["usage"]["completion_tokens"] == 64
        assert answer["choices"][0]["finish_reason"] == "length"
        admission.ladder_state = LadderState(Rung.REJECT_LOW)
        refused = guarded.post(TEXT, body, "ann")
        assert refused.status_code == 503 and refused.json()["error"]["code"] == "overloaded"
        assert int(refused.headers["retry-after-ms"]) >= 1
    finally:
        admission.ladder_state = LadderState()


def test_a_rate_is_per_second_from_the_start_and_fades():
    rate = Rate(half_life_s=2.0)
    for n in range(100):
        rate.add(5, n / 10)
    assert rate.value(10.0) == pytest.approx(50, rel=0.05)
    assert rate.value(12.0) == pytest.approx(25, rel=0.1)
    assert Rate().value(3.0) == 0.0


def test_the_page_needs_no_key_and_nothing_from_elsewhere(guarded):
    response = guarded.get("/")
    assert (
        response.status_code == 200
        and "default-src 'none'" in (response.headers["content-security-policy"])
    )
    assert not re.search(r"(?:src|href)=\"(?:https?:)?//", response.text)
    assert "localStorage" not in response.text and "innerHTML" not in response.text


def test_workload_classes_are_the_only_classes(guarded):
    classes = {s.labels["workload_class"] for s in scrape(guarded)["minserve_queued_tokens"]}
    assert classes == {kind.value for kind in WorkloadClass}
