"""The command line as a whole: help that teaches, errors that say what to do."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import time

import pytest

from minserve.models.registry import known_models

COMMANDS = ("estimate", "generate", "models", "parts", "replay", "simulate")
NANO = known_models()[0].folder
needs_nano = pytest.mark.skipif(NANO is None, reason="northstar-nano is not in data/models")


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help_with_an_example_and_json(minserve, command):
    text = minserve(command, "--help").ok().out
    assert f"minserve {command}" in text
    assert "--json" in text
    assert "Examples" in text or "nano answers" in text


def test_help_lists_every_command(minserve):
    text = minserve("--help").ok().out
    assert all(command in text for command in COMMANDS)


def test_no_command_shows_help_and_no_empty_error(minserve):
    ran = minserve("")
    assert ran.code == 2 and "error:" not in ran.err
    assert "estimate" in ran.out + ran.err


def test_help_loads_no_torch():
    program = (
        "import sys; sys.argv = ['minserve', '--help']\n"
        "from minserve.cli.main import main\n"
        "try: main()\nexcept SystemExit: pass\n"
        "print([name for name in ('torch', 'tokenizers', 'numpy') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout.splitlines()[-1] == "[]", done.stdout


def test_ctrl_c_while_commands_are_imported_leaves_no_stack_trace():
    program = (
        "import os, signal, sys\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"  # ignored in the background
        "class Interrupts:\n"
        "    def find_spec(self, name, *rest):\n"
        "        if name == 'minserve.cli.bench': os.kill(os.getpid(), signal.SIGINT)\n"
        "sys.meta_path.insert(0, Interrupts())\n"
        "import minserve.cli.main\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == -signal.SIGINT and done.stderr == ""
    program = (
        "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "import minserve.cli.main; signal.raise_signal(signal.SIGINT)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert "KeyboardInterrupt" in done.stderr  # from there on it is caught, and can be cleaned up


def test_models_lists_what_is_here_and_what_is_not(minserve):
    ran = minserve("models", "--json").ok()
    found = {model["name"]: model for model in ran.json["models"]}
    assert not found["smollm2"]["fetched"]  # in a fresh home
    assert "northstar-nano" in ran.out
    if NANO is not None:
        assert found["northstar-nano"]["context_tokens"] == 4096


def test_models_tells_what_a_folder_is_without_reading_weights(minserve, tmp_path):
    config = {
        "architectures": ["Qwen3ForCausalLM"],
        "num_hidden_layers": 28,
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "hidden_size": 1024,
        "intermediate_size": 3072,
        "vocab_size": 151936,
        "max_position_embeddings": 40960,
        "rope_theta": 1000000,
        "tie_word_embeddings": True,
        "torch_dtype": "bfloat16",
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    found = minserve("models", str(tmp_path), "--json").ok().json
    assert found["family"] == "Qwen3" and found["context_tokens"] == 40960
    assert found["parameters"] == 596_049_920  # as Qwen3-0.6B's safetensors header counts them
    assert found["weights_bytes"]["bfloat16"] == 2 * found["parameters"]
    assert found["kv_bytes_per_token"]["float16"] == 2 * 28 * 8 * 128 * 2
    minserve("models", "smollm2").refused("not on this machine yet")
    minserve("models", str(tmp_path / "none")).refused("there is no model")


@needs_nano
def test_generate_streams_the_same_text_as_its_json(minserve):
    command = ("generate --max-tokens 5 --json", "Question: What is the deposit?")
    ran = minserve(*command).ok()
    assert ran.json["text"] == ran.out.rsplit("\n", 2)[0].removesuffix("\n")
    assert ran.json["output_tokens"] <= 5
    assert minserve(*command).json["output_token_ids"] == ran.json["output_token_ids"]


@needs_nano
def test_generate_seeds_and_stops(minserve):
    sampled = "generate Once --raw --temperature 2 --max-tokens 8 --json"
    one, same, other = (minserve(sampled, "--seed", seed).ok().json for seed in ("1", "1", "2"))
    assert one["text"] == same["text"] != other["text"]
    text = one["text"]
    stopped = minserve(sampled, "--seed", "1", "--stop", text[2:4]).ok().json
    assert stopped["text"] == text[: text.index(text[2:4])]
    assert stopped["finish_reason"] == "stop"


@needs_nano
def test_generate_reads_standard_input(minserve):
    ran = minserve("generate", "-", "--max-tokens", "1", "--json", input="Question: who?\n").ok()
    assert ran.json["output_tokens"] == 1


@needs_nano
def test_generate_gives_several_answers_with_log_probabilities(minserve):
    sampled = "generate Once --raw --temperature 2 --max-tokens 6 --seed 1 --json"
    alone = minserve(sampled).ok().json
    cheap = ("--kv-cache-dtype", "int8", "--quantization", "int8", "--dtype", "auto")
    ran = minserve(sampled, "--n", "3", "--logprobs", "2", *cheap).ok()
    dtype, _, rest = ran.json["precision"].partition(", ")
    assert dtype in ("float32", "bfloat16") and rest == "int8 weights, int8 KV"
    texts = [choice["text"] for choice in ran.json["choices"]]
    assert len(set(texts)) == 3 and ran.out.startswith("\n\n".join(texts))
    assert ran.json["output_tokens"] == sum(c["output_tokens"] for c in ran.json["choices"])
    for choice in ran.json["choices"]:
        assert len(choice["logprobs"]) == choice["output_tokens"]
        assert all(len(token["top"]) == 2 and token["logprob"] < 0 for token in choice["logprobs"])
    assert "logprobs" not in alone
    same = minserve(sampled, "--n", "2").ok().json
    assert same["choices"][0]["text"] == alone["text"], "the first has the seed that was given"


# -- bad input


@pytest.fixture
def without_weights(tmp_path):
    """A model folder that has everything but its weights."""
    if NANO is None:
        pytest.skip("northstar-nano is not in data/models")
    folder = tmp_path / "bare"
    folder.mkdir()
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json"):
        shutil.copy(NANO / name, folder / name)
    return folder


@pytest.mark.parametrize("command", ["generate hi", "replay", "estimate"])
def test_an_unknown_model_is_named(minserve, command):
    minserve(command, "--model", "no-such-model").refused("no-such-model", "hint")


@pytest.mark.parametrize("command", ["generate hi", "replay --requests 4"])
def test_missing_weights_are_named(minserve, command, without_weights):
    minserve(command, "--model", str(without_weights)).refused("model.safetensors")


def test_a_damaged_weight_file_is_named(minserve, without_weights):
    (without_weights / "model.safetensors").write_bytes(b"not a tensor in sight")
    minserve("generate", "hi", "--model", str(without_weights)).refused("model.safetensors")


def test_a_folder_that_is_no_model_is_refused(minserve, tmp_path):
    minserve("generate", "hi", "--model", str(tmp_path)).refused()


@needs_nano
def test_a_prompt_beyond_the_context_is_refused_before_loading(minserve):
    minserve("generate", "word " * 6000).refused("4096", "context")


@pytest.mark.parametrize("tokens", ["0", "-3"])
def test_max_tokens_below_1_is_refused(minserve, tokens):
    minserve("generate", "hi", "--max-tokens", tokens).refused("max_tokens", tokens)


@needs_nano
def test_a_pool_too_small_for_one_request_is_refused(minserve):
    minserve("generate", "hi there", "--blocks", "1").refused("1", "blocks")
    minserve("generate", "hi there", "--blocks", "0").refused("0 blocks")
    minserve("replay", "--requests", "2", "--blocks", "2").refused("--blocks")
    minserve("simulate", "--requests", "2", "--blocks", "2").refused("--blocks")


@pytest.mark.parametrize(
    ("command", "word"),
    [
        ("generate hi --temperature -1", "temperature"),
        ("generate hi --top-p 0", "top_p"),
        ("generate hi --dtype float7", "float7"),
        ("generate hi --quantization int3", "int3"),
        ("bench precision --texts 0", "nothing to compare"),
        ("generate", "Missing argument"),
        ("replay --policies static,magic", "magic"),
        ("replay --policies ,", "policy"),
        ("replay --prefix maybe", "maybe"),
        ("replay --set both-ish", "both-ish"),
        ("replay --requests 0", "0 requests"),
        ("replay --batch-size 99", "99"),
        ("replay --load 0", "load"),
        ("replay --ordering alphabetical", "alphabetical"),
        ("simulate --max-running 0", "max_running"),
        ("simulate --requests -1", "-1"),
        ("simulate --step-ms -5", "cost"),
        ("simulate --requests x", "--requests"),
        ("nonsense", "nonsense"),
        ("replay --no-such-option", "--no-such-option"),
    ],
)
def test_bad_settings_are_one_clear_line(minserve, command, word):
    minserve(command).refused(word)


# -- the two that serve traffic


def test_simulate_gives_the_same_figures_twice(minserve):
    command = "simulate --requests 40 --policies static,continuous --json"
    one, two = minserve(command).ok(), minserve(command).ok()
    assert one.json["rows"] == two.json["rows"]
    assert one.json["comparison"][0]["tokens_per_s_ratio"] > 1


@needs_nano
def test_replay_prints_one_table_and_the_same_figures_as_json(minserve, tmp_path):
    out = tmp_path / "artifacts"
    ran = minserve(
        "replay --requests 8 --policies static,continuous --prefix both --json",
        *("--max-running", "4", "--batch-size", "4", "--out", str(out)),
    ).ok()
    report = ran.json
    assert [(row["policy"], row["prefix_reuse"]) for row in report["rows"]] == [
        ("static", False),
        ("continuous", False),
        ("static", True),
        ("continuous", True),
    ]
    for row in report["rows"]:
        assert row["num_ok"] == row["num_requests"] == 8
        assert row["quality"]["num_qualified"] is not None
        assert f"{row['tokens_per_s']:,.0f}" in ran.out
        assert (row["prefix_tokens_reused"] > 0) == row["prefix_reuse"]
    for told in ("nano", "float32", "torch", "warm", "cold", "not measured", "Output tokens"):
        assert told.lower() in ran.out.lower()
    assert (out / "timeline.png").read_bytes().startswith(b"\x89PNG")
    line = (out / "events-continuous.jsonl").read_text("utf-8").splitlines()[0]
    assert json.loads(line)["v"] == 1


@needs_nano
@pytest.mark.slow
def test_exact_mode_gives_identical_tokens_under_every_policy(minserve, tmp_path):
    ran = minserve(
        "replay --requests 6 --exact --set timing --max-running 4 --json",
        *("--batch-size", "4", "--out", str(tmp_path)),
    ).ok()
    assert ran.json["tokens_identical"]
    assert len(ran.json["rows"]) == 6


@needs_nano
def test_an_output_folder_that_cannot_be_written_is_refused_before_serving(minserve, tmp_path):
    blocked = tmp_path / "a-file"
    blocked.write_text("in the way")
    minserve("replay", "--requests", "4", "--out", str(blocked)).refused("a-file")
    assert blocked.read_text() == "in the way"


@needs_nano
@pytest.mark.slow
def test_the_demo_ends_in_time(minserve, tmp_path):
    began_s = time.perf_counter()
    minserve("replay", "--demo", "--out", str(tmp_path)).ok()
    assert time.perf_counter() - began_s < 240  # 120 s is the aim on two quiet cores


@needs_nano
@pytest.mark.parametrize(
    ("options", "word"),
    [
        ("--step-cap -7", "--step-cap -7"),
        ("--max-body 0", "1KiB"),
        ("--num-blocks 999999999999", "GB"),
        ("--semantic-examples questions.csv", "--semantic-cache default"),
        ("--port 99999999", "--host"),
    ],
)
def test_a_server_that_cannot_be_is_refused_before_it_listens(minserve, options, word):
    minserve(f"serve --port 0 {options}").refused(word)
