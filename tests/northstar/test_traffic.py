"""Traffic: seeded, in bursts, with lengths like the traces it says they come from."""

from __future__ import annotations

import importlib.util
import json
import random
from collections import Counter
from pathlib import Path
from statistics import fmean, median, pvariance

import pytest

from minserve.errors import ConfigError, DataNotFound
from minserve.northstar.corpus import load_corpus
from minserve.northstar.lengths import AZURE, MOONCAKE, LengthTable
from minserve.northstar.questions import is_qualified
from minserve.northstar.traffic import (
    MIX,
    PRIORITIES,
    at_rate,
    burst_times_s,
    make_traffic,
)

ROOT = Path(__file__).resolve().parents[2]
TRACES = ROOT.parent / "shared" / "traces"
TABLES = ROOT / "data" / "traces"


def encode(text: str) -> list[int]:
    """A token per word: no tokenizer is needed to test traffic."""
    return [len(word) for word in text.split()]


def traffic(which="timing", count=120, **options):
    return make_traffic(which, count, encode, **{"rate_per_s": 10.0} | options)


@pytest.fixture
def derive():
    spec = importlib.util.spec_from_file_location("derive", TABLES / "derive.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_equal_seeds_give_equal_traffic_and_others_do_not():
    for which in ("timing", "quality"):
        assert traffic(which, 30) == traffic(which, 30)
        assert traffic(which, 30) != traffic(which, 30, seed=1)


def test_every_kind_comes_in_its_share_and_in_order_of_time():
    made = traffic(count=200)
    counts = Counter(arrival.kind for arrival in made)
    for kind, share in MIX.items():
        assert abs(counts[kind] - 200 * share) <= 1
    times_s = [arrival.arrival_s for arrival in made]
    assert times_s == sorted(times_s)
    assert len({arrival.id for arrival in made}) == 200


def test_identity_and_salt_come_from_the_tenants_records():
    users = {user.id: user for user in load_corpus().users}
    salts = {}
    for arrival in traffic(count=100):
        user = users[arrival.identity.subject]
        assert user.tenant == arrival.identity.tenant
        salts.setdefault(user.tenant, set()).add(arrival.cache_salt)
    assert len(salts) == 3
    assert all(len(of_tenant) == 1 for of_tenant in salts.values())
    assert len(set.union(*salts.values())) == 3


def test_personal_questions_are_asked_by_their_owner():
    for arrival in traffic("quality", 100):
        if arrival.question.user:
            assert arrival.identity.subject == arrival.question.user
        assert arrival.identity.tenant == arrival.question.tenant


def test_the_timing_set_forces_lengths_and_the_quality_set_does_not():
    assert all(a.sampling.ignore_eos for a in traffic("timing", 40))
    for arrival in traffic("quality", 40):
        assert not arrival.sampling.ignore_eos
        assert is_qualified(arrival.question, arrival.question.expected["v1"], "v1")


def test_deadlines_and_priorities_follow_the_class():
    for arrival in traffic(count=60):
        assert arrival.deadline_s > arrival.arrival_s
        assert arrival.priority == PRIORITIES[arrival.workload_class]


def test_no_request_exceeds_the_cap():
    for limit in (600, 1000):
        for arrival in traffic(count=150, max_total_tokens=limit):
            assert len(arrival.prompt_token_ids) + arrival.sampling.max_tokens <= limit


def test_reports_have_much_longer_answers_than_questions():
    made = traffic(count=200)
    outputs = {kind: [a.sampling.max_tokens for a in made if a.kind == kind] for kind in MIX}
    assert median(outputs["report"]) > 5 * median(outputs["policy"])


def test_a_later_turn_of_a_chat_extends_an_earlier_prompt():
    chats = [a for a in traffic(count=200) if a.kind == "chat"]
    followed = 0
    for number, later in enumerate(chats):
        stems = [one.prompt.removesuffix("<|assistant|>") for one in chats[:number]]
        followed += any(later.prompt.startswith(stem) for stem in stems)
    assert followed > len(chats) / 4


def test_requests_of_a_kind_and_tenant_begin_alike():
    for kind in MIX:
        prompts = [a.prompt for a in traffic(count=100) if a.kind == kind]
        start = load_corpus().system_prompt
        assert all(prompt.startswith(f"<|system|>{start}") for prompt in prompts)


def test_at_rate_changes_times_and_nothing_else():
    slow = traffic(count=50)
    fast = at_rate(slow, 10.0, 20.0)
    for one, other in zip(slow, fast, strict=True):
        assert other.arrival_s == pytest.approx(one.arrival_s / 2)
        assert other.deadline_s - other.arrival_s == pytest.approx(one.deadline_s - one.arrival_s)
        assert other.prompt_token_ids == one.prompt_token_ids


def test_arrivals_keep_their_mean_rate_and_come_in_bursts():
    times_s = burst_times_s(random.Random(1), 20_000)
    assert 0.9 < len(times_s) / times_s[-1] < 1.1
    counts = Counter(int(time_s // 10) for time_s in times_s)
    series = [counts[window] for window in range(int(times_s[-1] // 10))]
    dispersion = pvariance(series) / fmean(series)
    assert dispersion > 2, "a Poisson process has 1"


@pytest.mark.parametrize(
    "options", [{"which": "load"}, {"count": 0}, {"rate_per_s": 0}, {"rate_per_s": float("nan")}]
)
def test_settings_without_meaning_are_refused(options):
    with pytest.raises(ConfigError):
        traffic(**options)


# -- length tables


def test_an_unknown_table_is_named():
    with pytest.raises(DataNotFound, match="no_such"):
        LengthTable.load("no_such")


@pytest.mark.parametrize("name", [AZURE, MOONCAKE])
def test_a_table_names_its_source_and_licence(name):
    about = json.loads((TABLES / f"{name}.json").read_text("utf-8"))["attribution"]
    assert about["licence"] in ("CC-BY-4.0", "Apache-2.0")
    assert about["source"] in (TABLES / "README.md").read_text("utf-8")


@pytest.mark.parametrize("name", [AZURE, MOONCAKE])
def test_drawn_lengths_have_the_tables_own_quantiles(name):
    table, rng = LengthTable.load(name), random.Random(5)
    drawn = sorted(table.draw(rng)[0] for _ in range(20_000))
    for share in (0.1, 0.5, 0.9):
        expected = table.prompt_tokens[table.prompt_grid.index(share)]
        assert drawn[int(share * len(drawn))] == pytest.approx(expected, rel=0.06)


def require_traces():
    if not (TRACES / "azure_conv.csv").is_file():
        pytest.skip(f"needs the public traces in {TRACES}; see data/traces/README.md")


def test_the_tables_are_what_derive_makes_of_the_traces(derive):
    require_traces()
    for name, table in derive.derive(TRACES).items():
        assert table == json.loads((TABLES / name).read_text("utf-8"))


def test_drawn_pairs_are_distributed_like_the_trace(derive):
    """Both margins by decile, and how outputs depend on prompts."""
    require_traces()
    readers = {
        AZURE: lambda: derive.read_azure(TRACES / "azure_conv.csv")[0],
        MOONCAKE: lambda: derive.read_mooncake(TRACES / "mooncake_conversation.jsonl")[0],
    }
    for name, read in readers.items():
        real = read()
        table, rng = LengthTable.load(name), random.Random(3)
        drawn = [table.draw(rng) for _ in range(len(real))]
        for side in (0, 1):
            theirs = sorted(pair[side] for pair in real)
            ours = sorted(pair[side] for pair in drawn)
            for share in (0.1, 0.25, 0.5, 0.75, 0.9, 0.95):
                at = int(share * len(real))
                assert ours[at] == pytest.approx(theirs[at], rel=0.12, abs=8), (name, side, share)
        half = median(pair[0] for pair in real)
        for is_long in (False, True):
            theirs = fmean(out for prompt, out in real if (prompt > half) == is_long)
            ours = fmean(out for prompt, out in drawn if (prompt > half) == is_long)
            assert ours == pytest.approx(theirs, rel=0.06)
