"""Traffic: equal descriptions give equal calls, traces keep times and shared prefixes."""

from __future__ import annotations

import json
import math
import os
import random
from pathlib import Path

import pytest

from minserve.errors import ConfigError, DataNotFound
from minserve.loadtest import datasets
from minserve.loadtest.traces import Row, lru_hit_rate, read_trace
from minserve.loadtest.workload import Workload

ROOT = Path(__file__).resolve().parents[2]
TRACES = Path(os.environ.get("MINSERVE_TRACES", ROOT.parent / "shared" / "traces"))
AZURE, MOONCAKE = TRACES / "azure_conv.csv", TRACES / "mooncake_conversation.jsonl"


def encode(text: str) -> list[int]:
    return [len(word) for word in text.split()]


def require_traces() -> None:
    if not TRACES.is_dir():
        pytest.skip(f"needs the public traces in {TRACES}; see data/traces/README.md")


@pytest.fixture
def mooncake(tmp_path) -> str:
    """Three requests: two turns of one chat, and another."""
    rows = [
        {"timestamp": 0, "input_length": 1000, "output_length": 5, "hash_ids": [1, 2]},
        {"timestamp": 3000, "input_length": 1500, "output_length": 0, "hash_ids": [1, 2, 3]},
        {"timestamp": 3000, "input_length": 600, "output_length": 9, "hash_ids": [1, 9]},
    ]
    path = tmp_path / "trace.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    return str(path)


@pytest.mark.parametrize("dataset", ["random", "shared-prefix", "northstar", "azure", "mooncake"])
def test_equal_descriptions_give_equal_calls(dataset):
    traffic = Workload(dataset, num_prompts=12, rate_per_s=3.0, burstiness=0.5, seed=4, scale=0.1)
    first, again = (list(traffic.calls(encode)) for _ in range(2))
    assert first == again and len(first) == 12
    assert first[0].at_s == 0.0 and first[-1].at_s > 0
    assert len({call.id for call in first}) == 12
    other = list(Workload(dataset, num_prompts=12, rate_per_s=3.0, seed=5, scale=0.1).calls(encode))
    assert other != first


def test_northstar_is_made_a_season_at_a_time(monkeypatch):
    monkeypatch.setattr(datasets, "SEASON", 5)
    made = list(datasets.northstar(encode, 12, seed=4))
    assert len(made) == 12 and made[:5] == list(datasets.northstar(encode, 5, seed=4))
    assert len({sample.text for sample in made}) > 5, "the seasons differ"


def test_only_the_times_depend_on_the_rate():
    slow, fast = (Workload(num_prompts=9, rate_per_s=rate) for rate in (1.0, 10.0))
    assert [c.sample for c in slow.calls()] == [c.sample for c in fast.calls()]
    assert list(fast.calls())[-1].at_s == pytest.approx(list(slow.calls())[-1].at_s / 10)


def test_random_lengths_keep_to_their_range_and_share_their_prefix():
    traffic = Workload(input_len=100, output_len=10, range_ratio=0.5, prefix_len=7, num_prompts=200)
    prompts = [call.sample.token_ids for call in traffic.calls()]
    assert {len(prompt) for prompt in prompts} <= set(range(57, 158))
    assert len({len(prompt) for prompt in prompts}) > 20
    assert len({prompt[:7] for prompt in prompts}) == 1 < len({prompt[7:9] for prompt in prompts})


def test_no_rate_and_an_infinite_rate_send_everything_at_once():
    for rate in (None, math.inf):
        assert {c.at_s for c in Workload(num_prompts=5, rate_per_s=rate).calls()} == {0.0}
    assert Workload(rate_per_s=math.inf).describe()["rate_per_s"] == "all at once"


def test_calls_are_cut_to_what_the_model_holds():
    traffic = Workload(input_len=1000, output_len=500, num_prompts=2, max_total_tokens=100)
    for call in traffic.calls():
        assert (len(call.sample.token_ids), call.sample.sampling.max_tokens) == (75, 25)


def test_mooncakes_block_ids_become_shared_prefixes(mooncake):
    first, second, third = (c.sample.token_ids for c in Workload("mooncake", mooncake).calls())
    assert (len(first), len(second), len(third)) == (1000, 1500, 600)
    assert second[:1000] == first and third[:512] == first[:512] and third[512:] != first[512:600]


def test_scaled_traces_share_as_much_in_smaller_blocks(mooncake):
    traffic = Workload("mooncake", mooncake, scale=1 / 32)
    first, second, third = (c.sample.token_ids for c in traffic.calls())
    assert (len(first), len(second), len(third)) == (31, 47, 19)
    assert second[:31] == first and third[:16] == first[:16] != third[16:]


def test_traces_keep_their_times_unless_a_rate_is_asked_for(mooncake):
    traffic = Workload("mooncake", mooncake)
    assert [c.at_s for c in traffic.calls()] == [0.0, 3.0, 3.0]
    assert [c.at_s for c in Workload("mooncake", mooncake, speed=3).calls()] == [0.0, 1.0, 1.0]
    assert [c.at_s for c in traffic.at_rate(2.0).calls()] == [0.0, 1.0, 1.0]
    drawn = [c.at_s for c in Workload("mooncake", mooncake, rate_per_s=1.0).calls()]
    assert len(set(drawn)) == 3


def test_lru_counts_partial_blocks_and_forgets_the_oldest():
    rows = [Row(0, 600, 1, (1, 2)), Row(1, 600, 1, (1, 3)), Row(2, 600, 1, (2,))]
    assert lru_hit_rate(rows, 10) == 2 / 5
    assert lru_hit_rate(rows, 2) == 1 / 5


@pytest.mark.parametrize(
    "content",
    [
        '[{"conversations": [{"value": "a b"}, {"value": "c d e"}]}]',
        '{"prompt": "a b", "completion": "c d e"}\n',
        '{"prompt": "a b", "max_tokens": 3}\n\n',
    ],
)
def test_sharegpt_style_files_are_read(tmp_path, content):
    path = tmp_path / "chats.json"
    path.write_text(content, "utf-8")
    calls = list(Workload("sharegpt", str(path), num_prompts=3).calls(encode))
    assert [call.sample.text for call in calls] == ["a b"] * 3
    assert calls[0].request(encode).prompt_token_ids == (1, 1)
    assert calls[0].sample.sampling.max_tokens == 3 and calls[0].sample.sampling.ignore_eos


@pytest.mark.parametrize("name", ["x.csv", "x.jsonl", "x.json"])
def test_files_that_are_no_traffic_are_refused_in_one_line(tmp_path, name):
    path = tmp_path / name
    dataset = "sharegpt" if name.endswith("json") else "azure"
    with pytest.raises(DataNotFound):
        list(Workload(dataset, str(path), num_prompts=1).calls(encode))
    path.write_text('{"nonsense": 1}\n', "utf-8")
    with pytest.raises(DataNotFound):
        list(Workload(dataset, str(path), num_prompts=1).calls(encode))


@pytest.mark.parametrize(
    "fields",
    [
        {"dataset": "nothing"},
        {"num_prompts": 0},
        {"rate_per_s": -1.0},
        {"arrivals": "trace"},
        {"arrivals": "ramp", "rate_per_s": 1.0},
        {"dataset": "sharegpt"},
        {"scale": 0.0},
    ],
)
def test_senseless_traffic_is_refused(fields):
    with pytest.raises(ConfigError):
        Workload(**fields)


def test_words_keep_shared_prefixes_shared():
    samples = datasets.shared_prefix(
        random.Random(0), num_prefixes=1, prefix_len=20, suffix_len=5, output_len=1
    )
    first, second = (next(datasets.words([next(samples)])).text for _ in range(2))
    assert first.split()[:20] == second.split()[:20] and first != second


def test_the_real_azure_trace_is_read():
    require_traces()
    rows = read_trace(AZURE)
    assert len(rows) == 19_366 and rows[0].time_s == 0.0
    prompts = sorted(row.num_prompt_tokens for row in rows)
    assert prompts[len(prompts) // 2] == pytest.approx(1_020, abs=1)


def test_cache_only_hit_rates_of_the_real_mooncake_trace():
    require_traces()
    rows = read_trace(MOONCAKE)
    assert len(rows) == 12_031
    found = [lru_hit_rate(rows, n) for n in (1_000, 10_000, 30_000)]
    assert found == pytest.approx([0.045, 0.211, 0.326], abs=0.001)
    assert sum(row.num_output_tokens for row in rows) == 4_122_048
