"""The four controlled cases (M3): one thing differs, everything else is equal."""

from __future__ import annotations

from minserve.request import WorkloadClass
from minserve.scenarios.lab import Bench, Outcome, Scenario, ask, at_times
from minserve.scheduling.batching import ContinuousBatching, StaticBatching
from minserve.scheduling.ordering import PriorityWithAgeing


def _cold(bench: Bench) -> Outcome:
    rng = bench.rng("cold")
    prompts = [bench.tokens(rng, 128) for _ in range(24)]
    calls = [(i * bench.unit_s, ask(prompt, 8)) for i, prompt in enumerate(prompts)]
    run = bench.serve(at_times(calls))
    m = run.measures
    return Outcome(
        m.cached_tokens == 0 and m.num_ok == 24,
        f"{m.cached_tokens:,} of {m.prompt_tokens:,} prompt tokens came from the cache",
        {"TTFT p50": {"cold, unique": m["ttft.p50"]}, "TTFT p95": {"cold, unique": m["ttft.p95"]}},
    )


def _prefix(bench: Bench) -> Outcome:
    rng = bench.rng("prefix")
    shared = bench.tokens(rng, 384)
    # The first request alone fills the cache; the others come when it is done.
    first = [(0.0, ask(shared + bench.tokens(rng, 16), 8, "first"))]
    later = [
        ((i + 4) * 2 * bench.unit_s, ask(shared + bench.tokens(rng, 16), 8, "later"))
        for i in range(16)
    ]
    on, off = (
        bench.serve(at_times(first + later), prefix_caching=on).of_kind("later")
        for on in (True, False)
    )
    share = on.cached_tokens / on.prompt_tokens
    tpot = on["tpot.p50"] / off["tpot.p50"]
    return Outcome(
        share > 0.8 and on["ttft.p50"] < 0.7 * off["ttft.p50"] and tpot > 0.7,
        f"{share:.0%} of prompt tokens were reused: TTFT fell to "
        f"{on['ttft.p50'] / off['ttft.p50']:.0%}, time per token stayed at {tpot:.0%}",
        {
            name: {"reuse off": off[at], "reuse on": on[at]}
            for name, at in (("TTFT p50", "ttft.p50"), ("TPOT p50", "tpot.p50"))
        },
    )


def _mixed(bench: Bench) -> Outcome:
    rng = bench.rng("mixed")
    calls = []
    for i in range(32):
        is_long = i % 4 == 0
        sample = ask(bench.tokens(rng, 48), 96 if is_long else 6, "long" if is_long else "short")
        calls.append((i * 0.25 * bench.unit_s, sample))
    static, continuous = (
        bench.serve(at_times(calls), policy=policy)
        for policy in (StaticBatching(8), ContinuousBatching(512, 8))
    )
    pairs = {"static": static, "continuous": continuous}
    e2e = {name: run.of_kind("short")["e2e.p95"] for name, run in pairs.items()}
    return Outcome(
        e2e["continuous"] < 0.7 * e2e["static"],
        f"a short answer took {e2e['static']:.3g} s (p95) in static batches, behind the longest "
        f"of its batch, and {e2e['continuous']:.3g} s in continuous ones",
        {
            "short, end to end p95": e2e,
            "long, end to end p95": {n: run.of_kind("long")["e2e.p95"] for n, run in pairs.items()},
        },
    )


def _classes(bench: Bench) -> Outcome:
    rng = bench.rng("classes")
    calls = []
    for _ in range(16):  # a backlog of offline work, all there at the start
        sample = ask(bench.tokens(rng, 200), 40, "batch", workload_class=WorkloadClass.BATCH)
        calls.append((0.0, sample))
    for i in range(16):
        sample = ask(
            bench.tokens(rng, 32), 6, "interactive", priority=50,
            workload_class=WorkloadClass.INTERACTIVE,
        )  # fmt: skip
        calls.append(((1 + i) * bench.unit_s, sample))
    # Room for half a class: who is admitted first is what differs.
    fifo, priority = (
        bench.serve(at_times(calls), policy=ContinuousBatching(256, 6), ordering=ordering)
        for ordering in (None, PriorityWithAgeing(ageing_s=1000 * bench.unit_s))
    )
    runs = {"first come": fifo, "by priority": priority}
    ttft = {name: run.of_kind("interactive")["ttft.p95"] for name, run in runs.items()}
    ends = {name: run.of_kind("batch")["e2e.p95"] for name, run in runs.items()}
    return Outcome(
        ttft["by priority"] < 0.6 * ttft["first come"] and priority.measures.num_ok == 32,
        f"people waited {ttft['first come']:.3g} s (p95) behind offline work, "
        f"{ttft['by priority']:.3g} s ahead of it; offline work still ended",
        {"interactive TTFT p95": ttft, "batch end to end p95": ends},
    )


CONTROLLED = (
    Scenario(
        "cold",
        "What does an answer cost when nothing can be reused?",
        "No prompt token comes from the cache: prompts are unique and the cache starts empty.",
        _cold,
    ),
    Scenario(
        "prefix",
        "What does a long shared prefix save, and what not?",
        "Time to first token falls; time per output token does not.",
        _prefix,
    ),
    Scenario(
        "mixed",
        "Who pays when short and long answers share batches?",
        "In static batches short answers wait for the longest; in continuous ones they do not.",
        _mixed,
    ),
    Scenario(
        "classes",
        "Can offline work be served beside people without their noticing?",
        "By priority people's first token comes sooner, and offline work still ends.",
        _classes,
    ),
)
