"""The adversarial cases (M4): what a careless or hostile client does to everybody else."""

from __future__ import annotations

from minserve.events import StepStarted
from minserve.metrics import cancel_delays_s, seconds
from minserve.scenarios.lab import Bench, Outcome, Run, Scenario, ask, at_times
from minserve.scheduling.batching import ContinuousBatching


def _cancel_storm(bench: Bench) -> Outcome:
    rng = bench.rng("cancel-storm")
    storm = [(0.0, ask(bench.tokens(rng, 96), 200, "storm")) for _ in range(16)]
    after = [(6 * bench.unit_s, ask(bench.tokens(rng, 48), 6, "after")) for _ in range(8)]
    calls = list(at_times(storm + after))
    at_s = 4 * bench.unit_s

    def plan(client) -> None:
        for call in calls:
            if call.sample.kind == "storm":
                client.cancel(call.id, at_s=at_s)

    run = bench.serve(calls, before=plan)
    pool, log = run.engine.pool, run.engine.log.events
    steps = [
        event for event in log
        if isinstance(event, StepStarted) and any("storm" in row[0] for row in event.rows)
    ]  # fmt: skip
    ended = [r.ended_s for r in run.records if r.kind == "storm" and r.outcome == "cancelled"]
    late = sum(event.time_s > max(ended) for event in steps) if ended else -1
    after_ttft = run.of_kind("after")["ttft.p95"]
    delays_s = cancel_delays_s(log, {r.id for r in run.records if r.kind == "storm"})
    holds = len(ended) == len(delays_s) == 16 and late == 0 and pool.num_used == 0
    return Outcome(
        holds and run.of_kind("after").num_ok == 8,
        f"{len(ended)} requests left at once: {late} steps worked for them afterwards, "
        f"{pool.num_used} blocks stayed in use; the last of theirs came back "
        f"{seconds(max(delays_s, default=None))} after the cancel",
        {"TTFT p95": {"who came after": after_ttft}},
        figures={"blocks_in_use": pool.num_used, "late_steps": late, "cancel_delays_s": delays_s},
    )


def _long_prompt(bench: Bench) -> Outcome:
    rng = bench.rng("long-prompt")
    burst_s = 3 * bench.unit_s
    burst = [(burst_s, ask(bench.tokens(rng, bench.max_prompt), 4, "long")) for _ in range(3)]
    talk = [(0.0, ask(bench.tokens(rng, 24), 60, "talk")) for _ in range(4)]
    runs = {
        f"{budget} tokens a step": bench.serve(
            at_times(talk + burst), policy=ContinuousBatching(budget, 16)
        )
        for budget in (4096, 128)
    }
    gaps = {name: run.of_kind("talk").latencies["itl"]["max"] for name, run in runs.items()}
    ttft = {name: run.of_kind("long")["ttft.p95"] for name, run in runs.items()}
    large, small = gaps.values()
    return Outcome(
        small < 0.5 * large,
        f"while long prompts came, the longest pause in a running answer was {large:.3g} s, and "
        f"{small:.3g} s with small chunks",
        {
            "longest pause in an answer": gaps,
            "long prompt, TTFT p95": ttft,
        },
    )


def _eviction(bench: Bench) -> Outcome:
    rng = bench.rng("eviction")
    documents = [bench.tokens(rng, 160) for _ in range(6)]
    calls = []
    for turn in range(4):
        for i, document in enumerate(documents):
            sample = ask(document + bench.tokens(rng, 8), 12)
            calls.append(((turn * 6 + i) * 2 * bench.unit_s, sample))
    runs = {f"{blocks} blocks": bench.serve(at_times(calls), blocks=blocks) for blocks in (24, 256)}

    def hits(run: Run) -> float:
        return run.engine.prefix_cache.hit_rate

    small, large = runs.values()
    evicted = small.engine.prefix_cache.num_evicted_blocks
    all_served = all(run.measures.num_ok == 24 for run in runs.values())
    return Outcome(
        all_served and evicted > 0 and hits(large) > hits(small) + 0.2,
        f"24 blocks evicted {evicted:,} times and reused {hits(small):.0%} of tokens, 256 reused "
        f"{hits(large):.0%}; all were served by both",
        {
            "tokens reused": {name: hits(run) for name, run in runs.items()},
            "TTFT p50 (seconds)": {name: run.measures["ttft.p50"] for name, run in runs.items()},
        },
        unit="share, or seconds",
    )


def _two_tenants(bench: Bench) -> Outcome:
    rng = bench.rng("two-tenants")
    prompt = bench.tokens(rng, 320)
    calls = []
    for i, (kind, tenant) in enumerate((("a first", "a"), ("b first", "b"), ("a again", "a"))):
        calls.append((i * 40 * bench.unit_s, ask(prompt, 4, kind, tenant=tenant, salt=tenant)))
    run = bench.serve(at_times(calls))
    cached = {r.kind: r.num_cached_tokens for r in run.records}
    ttft = {kind: run.of_kind(kind)["ttft.p50"] for kind in ("a first", "b first", "a again")}
    return Outcome(
        cached["b first"] == 0 and cached["a first"] == 0 and cached["a again"] > 0,
        f"the same prompt reused {cached['b first']} tokens for the other tenant and "
        f"{cached['a again']} for the same one",
        {"TTFT": ttft},
        figures={"cached_tokens": cached},
    )


ADVERSARIAL = (
    Scenario(
        "cancel-storm",
        "Sixteen clients leave at the same moment. Who still pays?",
        "Nobody: no step works for them afterwards, and every block comes back.",
        _cancel_storm,
    ),
    Scenario(
        "long-prompt",
        "What do three very long prompts do to answers that are running?",
        "Computed whole they stop every answer; in chunks, answers go on.",
        _long_prompt,
    ),
    Scenario(
        "eviction",
        "What is left of prefix reuse when the cache is too small for what is shared?",
        "Everything is served; blocks are evicted, and fewer tokens are reused.",
        _eviction,
    ),
    Scenario(
        "two-tenants",
        "Two tenants send the same prompt. Can one feel that the other was here?",
        "No: the salt keeps their blocks apart, while the same tenant does reuse its own.",
        _two_tenants,
    ),
)
