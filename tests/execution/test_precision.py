"""What is kept in which type: chosen by what the machine can do, and named where it matters."""

from __future__ import annotations

import pytest

from minserve.errors import ConfigError
from minserve.execution.precision import BFLOAT16_FLAGS, Precision, choose_dtype


@pytest.mark.parametrize("flag", BFLOAT16_FLAGS)
def test_auto_is_bfloat16_where_the_cpu_computes_in_it(flag):
    has = {"architecture": "x86_64", "avx2": True, "avx512_f": True}
    assert choose_dtype("auto", "cpu", has) == "float32"
    assert choose_dtype("auto", "cpu", has | {flag: False}) == "float32"
    assert choose_dtype("auto", "cpu", has | {flag: True}) == "bfloat16"


def test_without_auto_a_cpus_flags_change_nothing():
    everything = dict.fromkeys(BFLOAT16_FLAGS, True)
    assert choose_dtype(None, "cpu", everything) == "float32"
    assert choose_dtype("float32", "cpu", everything) == "float32"
    assert choose_dtype("bfloat16", "cpu", {}) == "bfloat16"


def test_this_cpu_says_what_it_can_do():
    assert choose_dtype("auto", "cpu") in ("float32", "bfloat16")


def test_a_precision_names_all_that_changes_a_logit():
    assert str(Precision("float32")) == "float32"
    whole = Precision("bfloat16", "int8", "int8")
    assert str(whole) == "bfloat16, int8 weights, int8 KV"
    assert whole.kv_dtype == "int8" and Precision("bfloat16", "int8").kv_dtype == "bfloat16"


def test_what_is_unknown_is_refused_with_what_there_is():
    for wrong in (("float32", "int3"), ("float32", "none", "fp8")):
        with pytest.raises(ConfigError, match=wrong[-1]) as error:
            Precision(*wrong)
        assert error.value.hint
    with pytest.raises(ConfigError, match="abacus"):
        choose_dtype("auto", "abacus")
