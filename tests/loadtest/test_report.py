"""Reports: a verdict that catches what makes figures worthless; pages that stand alone."""

from __future__ import annotations

import json
import random
import re

import pytest

from minserve.loadtest.measures import Objectives, Tally
from minserve.loadtest.record import ERROR, OK, REJECTED, Record
from minserve.loadtest.report import Report, as_json_line, judge


def tally_of(
    count=400, *, service_s=0.1, every_s=0.2, late_s=0.0, growth_s=0.0, outcome=OK, **fields
) -> Tally:
    tally = Tally(Objectives(ttft_s=0.5))
    for n in range(count):
        t = n * every_s
        first_s = t + late_s + service_s + n * growth_s
        times_s = [first_s, first_s + 0.1]
        more = {"kind": "a<b", "times_s": times_s, "counts": [1, 1], "num_prompt_tokens": 10}
        tally.add(Record(f"r{n}", t, t + late_s, times_s[1], outcome, **(more | fields)))
    return tally


def wrong(tally: Tally, **options) -> set[str]:
    return {f.name for f in judge(tally, tally.measures(), **options) if not f.is_ok}


def test_good_run_is_valid():
    assert wrong(tally_of(), others_share=0.01) == set()


@pytest.mark.parametrize(
    ("tally", "options", "finding"),
    [
        (tally_of(298), {}, "enough samples"),
        (tally_of(late_s=0.2), {}, "client keeps up"),
        (tally_of(growth_s=0.3), {}, "steady state"),
        (tally_of(outcome=ERROR), {}, "few failures"),
        (tally_of(service_s=40.0), {}, "long enough"),
        (tally_of(), {"others_share": 0.4}, "quiet machine"),
        (tally_of(count_source="chunks: the server sent no usage"), {}, "token counts"),
    ],
)
def test_each_way_to_lie_is_found(tally, options, finding):
    assert finding in wrong(tally, **options)


def test_a_simulation_has_no_client_to_be_late():
    assert "client keeps up" not in wrong(tally_of(late_s=0.2), is_simulated=True)


def report(tally: Tally | None = None) -> Report:
    tally = tally or tally_of()
    found = judge(tally, tally.measures())
    return Report("A <test>", tally, {"rate": 5}, {"warm": "no & yes"}, found)


def test_page_is_self_contained_and_escapes_what_it_is_told():
    page = report().html()
    assert "A &lt;test&gt;" in page and "<test>" not in page and "a&lt;b" in page
    assert "no &amp; yes" in page and "Valid" in page
    assert len(re.findall(r"<img alt=\"[^\"]{20,}\"", page)) == 4
    assert not re.findall(r"(?:src|href)=\"(?!data:)", page), "it refers to something outside"


def test_page_of_a_run_without_an_answer_still_says_so():
    page = report(tally_of(3, outcome=REJECTED)).html()
    assert "Not valid" in page and "3 rejected" in page


def test_json_is_one_line_of_finite_values():
    line = as_json_line(report(tally_of(1)).as_dict() | {"x": float("inf")})
    read = json.loads(line)
    assert "\n" not in line and read["x"] is None
    assert read["measures"]["latencies"]["ttft"]["bounds"]["p99"] == [0.1, None]
    assert read["by_kind"]["a<b"]["outcomes"] == {"ok": 1}
    assert read["is_valid"] is False


def test_table_shows_the_corrected_and_the_uncorrected_latency():
    from rich.console import Console

    console = Console(width=160, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    console.print(report(tally_of(late_s=1.0)).table())
    cells = [line.split() for line in console.export_text().splitlines()]
    shown = {row[0]: row[1:3] for row in reversed(cells) if row}
    assert shown["TTFT"] == ["1.1", "s"] and shown["uncorrected"] == ["100", "ms"]


def test_histogram_tallies_can_be_reported_too():
    rng, tally = random.Random(0), Tally(exact=False)
    for n in range(500):
        first_s = n + rng.random()
        tally.add(Record(f"r{n}", n, n, first_s + 1, OK, times_s=[first_s], counts=[1]))
    assert "Latencies of 500 requests" in report(tally).html()


def test_answers_are_told_apart_by_length_and_by_what_was_cached():
    tally = tally_of(100, num_cached_tokens=8, service_s=0.1)
    for n in range(20):
        cold = {"times_s": [n + 0.4, n + 0.9], "counts": [1, 1], "num_prompt_tokens": 300}
        tally.add(Record(f"c{n}", float(n), float(n), n + 0.9, OK, **cold))
    tally.add(Record("bad", 0.0, 0.0, 0.1, ERROR))  # no answer: in no segment
    told = report(tally)
    found = told.as_dict()["by_segment"]
    assert found["prompt"]["<=64"]["answers"] == 100 and found["prompt"]["<=1024"]["answers"] == 20
    assert set(found["output"]) == {"<=64"}
    assert found["prefix"]["cached"]["ttft_p95_s"] == pytest.approx(0.1, rel=0.01)
    assert found["prefix"]["not cached"]["ttft_p95_s"] == pytest.approx(0.4, rel=0.01)
    [line] = [line for line in told.lines() if line.startswith("TTFT p95")]
    assert "cached (100)" in line and "not cached (20)" in line
    assert "By length and cache" in told.html()
    assert not any(line.startswith("TTFT p95") for line in report(tally_of(9)).lines())
