"""The event log: every kind survives JSON, and what is no event is refused."""

from __future__ import annotations

import json
from dataclasses import fields

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import POLICIES, ask, content_engine, drain, small

from minserve.errors import DataNotFound
from minserve.events import (
    KINDS,
    VERSION,
    EventLog,
    Finished,
    TokenLogprob,
    from_json,
    load,
    to_json,
)

VALUES = {
    "float": st.floats(allow_nan=False),
    "str": st.text(),
    "int": st.integers(),
    "str | None": st.none() | st.text(),
    "tuple[int, ...]": st.lists(st.integers()).map(tuple),
    "tuple[tuple[str, int, int], ...]": st.lists(
        st.tuples(st.text(), st.integers(), st.integers())
    ).map(tuple),
    "tuple[TokenLogprob, ...]": st.lists(
        st.builds(
            TokenLogprob,
            st.floats(allow_nan=False),
            st.lists(st.tuples(st.integers(), st.floats(allow_nan=False))).map(tuple),
        )
    ).map(tuple),
}
events = st.one_of(
    [st.builds(cls, **{f.name: VALUES[f.type] for f in fields(cls)}) for cls in KINDS.values()]
)


@given(event=events)
@small(150)
def test_every_event_survives_json_on_one_line(event):
    line = to_json(event)
    assert "\n" not in line and json.loads(line)["v"] == VERSION
    assert from_json(line) == event


@pytest.mark.parametrize("policy", POLICIES.values(), ids=POLICIES)
def test_a_whole_log_survives_a_file(policy, tmp_path):
    engine = content_engine(policy(), num_blocks=6, block_size=2)
    for n in range(3):
        engine.submit(ask(f"é{n}", 3, 6), 0.0)
    drain(engine)
    engine.log.save(tmp_path / "log.jsonl")
    lines = (tmp_path / "log.jsonl").read_text(encoding="utf-8").splitlines()
    assert load([*lines, "", "  "]) == engine.log.events
    assert {event.kind for event in engine.log.events} == set(KINDS)


RIGHT = json.loads(to_json(Finished(1.0, "a", "stop", 3)))


@pytest.mark.parametrize(
    "line",
    ["", "{", "[1]", "5", "null", '"text"', "{}"]
    + [json.dumps(RIGHT | {"v": VERSION + 1}), json.dumps(RIGHT | {"kind": "unheard of"})]
    + [json.dumps(RIGHT | {"more": 1})]
    + [json.dumps({k: v for k, v in RIGHT.items() if k != name}) for name in ("v", "kind")]
    + [json.dumps({k: v for k, v in RIGHT.items() if k != name}) for name in ("time_s", "reason")],
)
def test_what_is_no_event_is_refused(line):
    with pytest.raises(DataNotFound):
        from_json(line)


def test_listeners_hear_events_in_order_from_when_they_listen():
    log, heard = EventLog(keep=False), []
    log.add(Finished(0.0, "early", "stop", 0))
    log.listen(heard.append)
    said = [Finished(float(n), f"r{n}", "stop", 0) for n in range(3)]
    for event in said:
        log.add(event)
    assert heard == said and log.events == []
