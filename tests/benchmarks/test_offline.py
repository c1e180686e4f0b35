"""The offline benchmark: the same work for everybody, and no figure from a failed run."""

from __future__ import annotations

import io
import json
import subprocess
import sys

import pytest
from rich.console import Console

from minserve.benchmarks.offline import Measured
from minserve.benchmarks.runner import Runner
from minserve.benchmarks.workloads import SHAPES, Workload, workload
from minserve.cli.bench_offline import _breakdown
from minserve.errors import ConfigError, MinserveError
from minserve.execution.step_times import PARTS


@pytest.mark.parametrize("name", SHAPES)
def test_a_workload_is_fixed_by_its_seed_and_keeps_to_its_shape(name):
    num_requests, tokens_in, tokens_out = SHAPES[name]
    work = workload(name, 1000)
    assert work == workload(name, 1000) != workload(name, 1000, seed=1)
    assert len(work.prompts) == len(work.max_tokens) == num_requests
    assert all(tokens_in[0] <= len(p) <= tokens_in[1] for p in work.prompts)
    assert all(tokens_out[0] <= n <= tokens_out[1] for n in work.max_tokens)
    assert all(0 <= token < 1000 for p in work.prompts for token in p)


def test_an_unknown_workload_is_named():
    with pytest.raises(ConfigError, match="'17 mixed'"):
        workload("17 mixed", 1000)


def test_the_median_and_not_the_mean_is_compared():
    work = Workload("w", ((1, 2),), (10,))
    results = tuple({"outputs": [[1] * 10], "peak_rss_bytes": n} for n in (5, 9, 7))
    ours = Measured("minserve", work, (1.0, 9.0, 2.0), results)
    assert (ours.median_s, ours.tokens_per_s, ours.peak_rss_bytes) == (2.0, 5.0, 9)
    other = Measured("peer", work, (1.0,), ({"outputs": [[2] * 10], "peak_rss_bytes": 1},))
    assert ours.agreement(ours) == 1 and ours.agreement(other) == 0


def test_a_runner_that_dies_says_its_last_words(tmp_path):
    script = tmp_path / "dies.py"
    script.write_text("import sys; sys.exit('no such weights')")
    with pytest.raises(MinserveError, match=r"peer ended with code 1.*no such weights"):
        Runner("peer", str(script), {"threads": 1})


def test_a_peer_whose_python_is_missing_says_which_option_to_give():
    with pytest.raises(ConfigError, match="could not be started for vllm"):
        Runner("vllm", "run_vllm.py", {"threads": 1}, python="/no/such/python")


def test_the_breakdown_is_in_shares_of_a_steps_time():
    spent = {"scheduling": 1.0, "projections": 3.0}
    console = Console(file=io.StringIO(), width=100)
    console.print(_breakdown([{"workload": "w", "num_steps": 10, "step_times_s": spent}]))
    shown = console.file.getvalue().splitlines()[-2].split()
    assert shown == ["w", "10", "400.0", "25.0%", "75.0%"]


@pytest.mark.slow
def test_a_run_beside_transformers_compares_the_same_tokens():
    command = [sys.executable, "-m", "minserve", "bench", "offline", "--model", "nano"]
    options = ["--workloads", "single", "--repeats", "1", "--against", "transformers"]
    done = subprocess.run([*command, *options], capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout.splitlines()[-1])
    assert {row["engine"] for row in report["results"]} == {"minserve", "transformers"}
    for row in report["results"]:
        assert row["same_tokens"] == 1.0  # one greedy request: two engines, the same text
        assert row["tokens_per_s"] * row["median_s"] == pytest.approx(128)
    assert report["roofline"]["sum_of_weights_s"] > 0
    [ours] = [row for row in report["results"] if row["engine"] == "minserve"]
    assert tuple(ours["step_times_s"]) == PARTS and ours["num_steps"] == 128
    assert 0 < sum(ours["step_times_s"].values()) <= ours["median_s"]
    memory = report["memory"]
    assert sum(memory.values()) - memory["peak_rss_bytes"] >= memory["peak_rss_bytes"]
    assert min(memory.values()) >= 0 and memory["rest_bytes"] <= 300e6
