"""MLPerf-style scenarios (M5): the same engine, asked in five ways. Not MLPerf results: those have
rules of their own on models, data, run length and auditing (Reddi et al., 2020).
"""

from __future__ import annotations

from minserve.loadtest.generator import Pace
from minserve.scenarios.lab import Bench, Outcome, Scenario, ask, at_times

COUNT = 24


def _samples(bench: Bench, name: str, count: int = COUNT):
    rng = bench.rng(name)
    return [ask(bench.tokens(rng, rng.randint(16, 128)), rng.randint(4, 24)) for _ in range(count)]


def _streams(bench: Bench, users: int, name: str):
    calls = at_times((0.0, sample) for sample in _samples(bench, name))
    return bench.serve(calls, pace=Pace(users, is_closed=True))


def _offline(bench: Bench) -> Outcome:
    together = bench.serve(at_times((0.0, s) for s in _samples(bench, "mlperf")))
    alone = _streams(bench, 1, "mlperf")
    rates = {
        name: run.measures.output_tokens_per_s
        for name, run in (("one by one", alone), ("all at once", together))
    }
    return Outcome(
        rates["all at once"] > 1.5 * rates["one by one"],
        f"{rates['all at once']:,.0f} tokens/s with all there, {rates['one by one']:,.0f} one by "
        "one: batching is throughput",
        {"output tokens/s": rates},
        unit="tokens/s",
    )


def _single_stream(bench: Bench) -> Outcome:
    m = _streams(bench, 1, "mlperf").measures
    is_free = (m["queue_delay.p99"] or 0.0) < 0.2 * m["e2e.p50"]
    return Outcome(
        is_free and m.num_ok == COUNT,
        f"one request at a time: p90 latency {m['e2e.p90']:.3g} s, of which "
        f"{m['queue_delay.p99']:.2g} s at most waiting",
        {"end to end": {at: m[f"e2e.{at}"] for at in ("p50", "p90", "p99")}},
    )


def _multi_stream(bench: Bench) -> Outcome:
    runs = {f"{n} users": _streams(bench, n, "mlperf").measures for n in (1, 2, 4, 8)}
    latency = {name: m["e2e.p90"] for name, m in runs.items()}
    rates = {name: m.output_tokens_per_s for name, m in runs.items()}
    values = list(rates.values())
    return Outcome(
        values[-1] > values[0] and list(latency.values())[-1] > list(latency.values())[0],
        f"eight users get {values[-1] / values[0]:.1f} x the tokens of one, and each waits "
        f"{latency['8 users'] / latency['1 users']:.1f} x as long",
        {"end to end p90": latency},
        figures={"output_tokens_per_s": rates},
    )


def _server(bench: Bench) -> Outcome:
    """Poisson arrivals at two shares of what the offline run could serve."""
    at_once = bench.serve(at_times((0.0, s) for s in _samples(bench, "server", 60))).measures
    tails = {}
    for load in (0.5, 1.5):
        rng, time_s, calls = bench.rng(f"times/{load}"), 0.0, []
        for sample in _samples(bench, "server", 60):
            time_s += rng.expovariate(load * at_once.requests_per_s)
            calls.append((time_s, sample))
        tails[f"{load:g} of saturation"] = bench.serve(at_times(calls)).measures["ttft.p99"]
    low, high = tails.values()
    return Outcome(
        high > 1.5 * low,
        f"p99 TTFT is {low:.3g} s at half of saturation and {high:.3g} s beyond it",
        {"TTFT p99": tails},
    )


def _interactive(bench: Bench) -> Outcome:
    """The same arrivals, judged by a loose and by a tight limit on TTFT and TPOT."""
    at_once = bench.serve(at_times((0.0, s) for s in _samples(bench, "server", 60))).measures
    rng, time_s, calls = bench.rng("interactive"), 0.0, []
    for sample in _samples(bench, "server", 60):
        time_s += rng.expovariate(0.8 * at_once.requests_per_s)
        calls.append((time_s, sample))
    run = bench.serve(at_times(calls))
    m = run.measures
    limits = {
        "server (4 x, 4 x)": (4 * m["ttft.p50"], 4 * m["tpot.p50"]),
        "interactive (1.2 x, 1.2 x)": (1.2 * m["ttft.p50"], 1.2 * m["tpot.p50"]),
    }

    def share(ttft_s: float, tpot_s: float) -> float:
        good = [
            r.ttft_s <= ttft_s and (r.tpot_s is None or r.tpot_s <= tpot_s) for r in run.records
        ]
        return sum(good) / len(good)

    shares = {name: share(*limit) for name, limit in limits.items()}
    loose, tight = shares.values()
    return Outcome(
        tight < loose,
        f"{loose:.0%} keep limits of four times the medians, {tight:.0%} those of 1.2 times: "
        "a rate without its limits says nothing",
        {"requests within the limits": shares},
        unit="share",
    )


MLPERF = (
    Scenario(
        "offline",
        "How much can it do when nobody waits?",
        "With everything there at once, throughput is well above one by one.",
        _offline,
    ),
    Scenario(
        "server",
        "What does the tail do near saturation?",
        "p99 TTFT rises steeply beyond what can be served.",
        _server,
    ),
    Scenario(
        "single-stream",
        "How fast is one answer when nothing else runs?",
        "No waiting: latency is service alone.",
        _single_stream,
    ),
    Scenario(
        "multi-stream",
        "What do more users at a time cost each of them?",
        "Throughput rises with users, and so does the latency of each.",
        _multi_stream,
    ),
    Scenario(
        "interactive",
        "How many of the same answers are good enough for a person who reads along?",
        "Fewer than pass the server's limits: capacity depends on the objectives.",
        _interactive,
    ),
)
