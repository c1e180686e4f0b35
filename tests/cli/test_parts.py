"""`minserve parts`: what a learner has built, and whose part the engine runs."""

from __future__ import annotations


def test_an_empty_workspace_runs_the_reference_everywhere(minserve):
    parts = minserve("parts --json").ok().json["parts"]
    assert {"kv_bytes_per_token", "block_pool", "paged_attention"} <= {p["name"] for p in parts}
    assert {(p["is_green"], p["version"], p["engine_runs"]) for p in parts} == {
        (False, None, "reference")
    }


def test_the_reference_always_unblocks_and_what_is_not_built_cannot_be_chosen(minserve):
    assert "the reference" in minserve("parts use block_pool reference").ok().out
    assert "not ready" in minserve("parts use block_pool mine").ok().out
    assert minserve("parts --json").ok().json["parts"][1]["engine_runs"] == "reference"


def test_hints_climb_from_the_rule_to_the_reference(minserve):
    rungs = [minserve(f"parts hint block_pool {rung}").ok().out for rung in range(1, 6)]
    assert len(set(rungs)) == 5
    assert "def allocate" in rungs[-1]


def test_what_does_not_exist_is_one_clear_line(minserve):
    minserve("parts use nope mine").refused("nope")
    minserve("parts use block_pool theirs").refused("theirs")
    minserve("parts hint block_pool 9").refused("9")
    minserve("parts restore block_pool 7").refused("7")


def test_progress_of_an_empty_workspace_says_what_is_to_build(minserve):
    ran = minserve("progress --json").ok()
    assert "3 KV-cache memory" in ran.out and "concept check before the course" in ran.out
    assert ran.json["num_built"] == 0 and ran.json["num_parts"] >= 22


def test_trace_without_a_server_is_one_clear_line(minserve):
    minserve("parts --trace --url http://127.0.0.1:9").refused("no minserve server answers")
