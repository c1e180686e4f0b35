"""`minserve estimate`: exact figures, both unit systems, no weights loaded."""

from __future__ import annotations

import subprocess
import sys

import pytest

EXERCISE = "estimate --bytes-per-token 128KB --context 3000 --free 24GB"


def test_the_worked_exercise_gives_62_and_explains_65(minserve):
    ran = minserve(EXERCISE, "--json").ok()
    assert ran.json["concurrent_requests"] == 62
    assert ran.json["decimal"]["concurrent_requests"] == 62
    assert ran.json["binary"]["concurrent_requests"] == 65
    words = minserve(EXERCISE).ok().out
    assert "62" in words and "65" in words and "GiB" in words


def test_binary_units_give_65(minserve):
    ran = minserve("estimate --bytes-per-token 128KiB --context 3000 --free 24GiB --json").ok()
    assert ran.json["concurrent_requests"] == 65
    assert ran.json["bytes_per_token"] == 131072


def test_smollm2_in_float32_takes_46080_bytes_per_token_without_being_fetched(minserve, tmp_path):
    ran = minserve("estimate --model smollm2 --dtype float32 --json").ok()
    assert ran.json["bytes_per_token"] == 46_080
    assert "46,080" in ran.out
    assert not (tmp_path / "home" / "models").exists()


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ("--layers 32 --kv-heads 8 --head-dim 128 --dtype float16", 131_072),
        ("--layers 32 --kv-heads 8 --head-dim 128 --dtype float16 --devices 4", 32_768),
        ("--layers 32 --kv-heads 1 --head-dim 128 --dtype float16 --devices 4", 16_384),
        ("--layers 2 --kv-heads 1 --head-dim 64 --dtype int8", 2 * 2 * (64 + 2)),
    ],
)
def test_a_shape_gives_bytes_per_token(minserve, options, expected):
    assert minserve(f"estimate {options} --json").ok().json["bytes_per_token"] == expected


def test_nothing_heavy_is_loaded():
    program = (
        "import sys; sys.argv = ['minserve', 'estimate', '--model', 'smollm2']\n"
        "from minserve.cli.main import main\n"
        "try: main()\nexcept SystemExit: pass\n"
        "print([name for name in ('torch', 'transformers', 'matplotlib') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout.splitlines()[-1] == "[]", done.stdout


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ("", "one place"),
        ("--bytes-per-token 128KB --model nano", "one place"),
        ("--layers 3", "one place"),
        ("--bytes-per-token 128XB", "128XB"),
        ("--bytes-per-token 128KB --context 0 --free 1GB", "0"),
        ("--bytes-per-token 128KB --context 10 --free -1GB", "-1GB"),
        ("--layers 2 --kv-heads 1 --head-dim 64 --dtype float3", "float3"),
        ("--layers 2 --kv-heads 1 --head-dim 64 --devices 0", "0 devices"),
        ("--layers 2 --kv-heads 0 --head-dim 64", "positive"),
        ("--model no-such-model", "no-such-model"),
        ("--context many", "--context"),
    ],
)
def test_bad_input_is_one_clear_line(minserve, options, word):
    minserve(f"estimate {options}").refused(word)
