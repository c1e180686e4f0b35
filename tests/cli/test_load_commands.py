"""loadtest, simulate, calibrate, capacity, scenario, arena, bench loadgen: as a user has them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

MODEL = Path(__file__).resolve().parents[2] / "data/models/northstar-nano/model.safetensors"
needs_nano = pytest.mark.skipif(not MODEL.is_file(), reason="northstar-nano is not in data/models")
COMMANDS = ("loadtest", "calibrate", "capacity", "scenario", "arena", "bench loadgen")


@pytest.fixture
def server():
    """The URL of a mock server in a process of its own."""
    program = [sys.executable, "-m", "minserve.loadtest.mock_server", "--ttft-ms", "5"]
    with subprocess.Popen(program, stdout=subprocess.PIPE, text=True) as process:
        yield process.stdout.readline().strip()
        process.kill()


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help_with_an_example_and_json(minserve, command):
    text = minserve(command, "--help").ok().out
    assert f"minserve {command}" in text and "--json" in text


def test_loadtest_takes_the_flags_people_know_and_saves_three_files(minserve, server, tmp_path):
    ran = minserve(
        f"loadtest --base-url {server} --dataset-name random --num-prompts 40 --request-rate 100 "
        "--burstiness 0.5 --max-concurrency 20 --random-input-len 8 --random-output-len 4 "
        "--ignore-eos --seed 3 --num-warmups 2 --save-result --json "
        f"--result-dir {tmp_path} --goodput ttft:500 tpot:50"
    ).ok()
    report = ran.json
    assert report["measures"]["outcomes"] == {"ok": 40}
    assert report["objectives"] == "TTFT <= 500 ms, TPOT <= 50 ms"
    assert report["measures"]["output_tokens"] == 160
    assert report["conditions"]["precision"] == "the server does not tell"
    assert {"hardware", "warm", "prefix cache", "loop", "minserve"} <= set(report["conditions"])
    assert [f["name"] for f in report["verdict"] if not f["is_ok"]][0] == "enough samples"
    for told in ("uncorrected", "dispatch delay", "NOT VALID", "2 requests of other seeds"):
        assert told in ran.out
    records = [json.loads(x) for x in (tmp_path / "requests.jsonl").read_text().splitlines()]
    assert len(records) == 40 and all(r["ttft_s"] >= 0.005 for r in records)
    saved = json.loads((tmp_path / "result.json").read_text())
    assert saved["measures"]["outcomes"] == {"ok": 40}
    assert (tmp_path / "report.html").read_text().startswith("<!doctype html>")


@pytest.mark.slow
def test_loadtest_speaks_chat_and_closed_loop(minserve, server):
    ran = minserve(
        f"loadtest --base-url {server} --backend openai-chat --num-prompts 12 --max-concurrency 3 "
        "--input-len 5 --output-len 2 --num-warmups 0 --json"
    ).ok()
    assert ran.json["measures"]["outcomes"] == {"ok": 12}
    assert "closed, 3 users" in ran.json["conditions"]["loop"]
    assert ran.json["conditions"]["warm"] == "cold start"


@pytest.mark.parametrize(
    ("command", "word"),
    [
        ("loadtest --base-url http://127.0.0.1:9 --num-prompts 1", "no server"),
        ("loadtest --base-url ftp://x --num-prompts 1", "ftp"),
        ("loadtest --dataset-name nothing", "nothing"),
        ("loadtest --request-rate fast", "fast"),
        ("loadtest --goodput speed:1", "speed"),
        ("loadtest --dataset-name sharegpt", "file"),
        ("loadtest --dataset-path /nowhere.jsonl --request-rate trace", "/nowhere.jsonl"),
        ("simulate --dataset-path /nowhere.json", "/nowhere.json"),
        ("simulate --dataset-path /etc/hosts", "--dataset-name"),
        ("loadtest --closed-loop", "users"),
        ("loadtest --sweep", "say what is good"),
        ("simulate --load 0", "load of 0"),
        ("simulate --dataset-name azure --profile warp", "warp"),
        ("simulate --dataset-name azure --router magic", "magic"),
        ("simulate --dataset-name azure --model nano", "calibrate"),
        ("scenario nothing", "nothing"),
        ("arena --policy nowhere:Nothing", "nowhere"),
        ("capacity --target 2", "target"),
        ("capacity --request-rate 0", "rate 0"),
        ("capacity --load-s -1", "-1"),
        ("capacity --wave-s 0", "waves of 0"),
        ("capacity --autoscale", "--request-rate"),
        ("calibrate --budget 0", "budget"),
        ("bench loadgen --rate 0", "0"),
    ],
)
def test_bad_settings_are_one_clear_line(minserve, command, word):
    minserve(command).refused(word)


def test_simulate_reports_any_traffic_as_loadtest_does(minserve, tmp_path):
    command = (
        "simulate --dataset-name azure --scale 0.1 --num-prompts 320 --request-rate 8 --replicas 2 "
        f"--save-result --result-dir {tmp_path} --json --goodput ttft:500 tpot:500"
    )
    one, two = minserve(command).ok().json, minserve(command).ok().json
    assert one["measures"] == two["measures"] and one["measures"]["outcomes"] == {"ok": 320}
    assert one["is_valid"] and one["measures"]["attainment"] > 0.9
    assert (tmp_path / "report.html").is_file()


@pytest.mark.slow
def test_simulate_streams_with_bounded_memory(minserve):
    ran = minserve(
        "simulate --dataset-name random --input-len 8 --output-len 2 --num-prompts 2000 "
        "--request-rate 50 --stream --json"
    ).ok()
    assert ran.json["conditions"]["percentiles"].startswith("from histograms")
    assert ran.json["measures"]["outcomes"] == {"ok": 2000}


@pytest.mark.slow
def test_sweep_finds_the_rate_that_a_server_bears(minserve, tmp_path):
    from live_server import Live

    with Live(step_s=0.01) as live:
        ran = minserve(
            f"loadtest --url {live.url} --sweep --backend openai-chat --num-prompts 60 "
            "--request-rate 20 --input-len 8 --output-len 8 --num-warmups 1 --goodput ttft:400 "
            f"--target 0.9 --result-dir {tmp_path} --json"
        ).ok()
    best, cells = ran.json["best_per_s"], ran.json["cells"]
    assert max(cell["rate_per_s"] for cell in cells if cell["is_met"]) == best
    assert any(cell["rate_per_s"] > best for cell in cells), "it stopped at one that is too much"
    assert (tmp_path / "sweep.png").is_file() and f"bears {best:.3g}" in ran.out


@pytest.mark.slow
def test_capacity_plans_one_replica_and_many(minserve, tmp_path):
    small = "capacity --profile nano --dataset-name random --input-len 32 --output-len 4 "
    small += f"--num-prompts 200 --out {tmp_path} --json"
    best = minserve(f"{small} --goodput ttft:300").ok().json["best_per_s"]
    assert best > 1 and (tmp_path / "capacity.png").is_file()
    plan = minserve(f"{small} --goodput ttft:300 --request-rate {2.5 * best:.3f}").ok().json
    assert 2 <= plan["replicas"] <= 5
    scaled = minserve(
        f"{small} --goodput ttft:300 --request-rate 5 --autoscale --load-s 30 --wave-s 60"
    ).ok()
    assert len(scaled.json["scaling"]) == 7 and (tmp_path / "scaling.png").is_file()
    assert "30 s to load" in scaled.out


@pytest.mark.slow
def test_scenario_prints_question_expectation_and_result(minserve, tmp_path):
    ran = minserve(f"scenario prefix --out {tmp_path} --json").ok()
    assert ran.json["holds"] and ran.json["scenarios"]["prefix"]["question"].endswith("?")
    assert "cold" in ran.json["conditions"]["prefix cache"]
    assert "16 requests and 512 tokens" in ran.json["conditions"]["in a step"]
    assert "expected" in ran.out and "holds" in ran.out
    assert (tmp_path / "scenario-prefix.png").is_file()


@needs_nano
@pytest.mark.slow
def test_arena_ranks_a_learners_policy_too(minserve):
    ran = minserve(
        "arena --requests 60 --policy minserve.scheduling.batching:StaticBatching --json"
    ).ok()
    names = {score["name"] for score in ran.json["scores"]}
    assert len(names) == 5 and "yours" in names


@needs_nano
@pytest.mark.slow
def test_calibrate_then_simulate_then_validate(minserve):
    told = minserve("calibrate --model nano --budget 2 --blocks 512 --json").ok()
    assert told.json["fit"]["num_steps"] >= 10  # how good it is depends on who else is here
    ran = minserve(
        "simulate --model nano --dataset-name northstar --num-prompts 40 --request-rate 5 --json"
    ).ok()
    assert "calibrated here" in ran.json["conditions"]["profile"]
    checked = minserve("simulate --validate --model nano --num-prompts 40 --json").ok()
    assert len(checked.json["rows"]) == 7 and checked.json["num_ok"] == [40, 40, 40]


@needs_nano
@pytest.mark.slow
def test_loadtest_in_process_runs_the_real_engine(minserve):
    ran = minserve(
        "loadtest --model nano --dataset-name northstar --num-prompts 20 --request-rate 10 --json"
    ).ok()
    assert ran.json["measures"]["outcomes"] == {"ok": 20}
    assert ran.json["measures"]["deadline_attainment"] is not None
    assert "chat" in ran.json["by_kind"]
