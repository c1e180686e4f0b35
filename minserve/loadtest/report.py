"""What is said of a load test: a verdict on its validity first, then tables, JSON, pictures.

A simulation is reported by the same code, so that the two can be laid side by side.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from html import escape
from typing import Any

from minserve.loadtest.distributions import bound_ranks
from minserve.loadtest.measures import SHARES, Figures, Measures, Tally
from minserve.loadtest.pictures import bounds, latency_curves, lengths, timeline
from minserve.loadtest.record import OK
from minserve.loadtest.steady import Queue
from minserve.metrics import seconds
from minserve.pictures import Picture

MAX_DISPATCH_S, MAX_DISPATCH_SHARE = 0.010, 0.05
MAX_FAILED_SHARE = 0.01
MAX_OTHERS_SHARE = 0.05
"""Above this share of CPU time used by others, a comparison of times is no verdict."""

NAMES = {
    "ttft": "TTFT",
    "uncorrected_ttft": "  uncorrected",
    "tpot": "TPOT",
    "itl": "ITL",
    "e2e": "end to end",
    "uncorrected_e2e": "  uncorrected",
    "queue_delay": "queue delay",
    "dispatch_delay": "dispatch delay",
}


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that must hold before the figures mean anything."""

    name: str
    is_ok: bool
    said: str


def judge(
    tally: Tally,
    measures: Measures,
    *,
    is_open: bool = True,
    is_simulated: bool = False,
    others_share: float | None = None,
) -> list[Finding]:
    """Whether the figures can be trusted, and if not, why. Five checks, six where CPU is known."""
    findings = [_samples(measures), _failures(measures), _long_enough(measures)]
    findings.append(_steady(tally, is_open))
    if not is_simulated:
        findings.append(_client(measures, is_open))
    if others_share is not None:
        said = f"other programs used {others_share:.0%} of the CPU"
        findings.append(Finding("quiet machine", others_share <= MAX_OTHERS_SHARE, said))
    guessed = {how: n for how, n in measures.count_sources.items() if "no usage" in how}
    if guessed:
        said = f"{sum(guessed.values()):,} answers came without usage: chunks stand in for tokens"
        findings.append(Finding("token counts", False, said))
    return findings


def _samples(measures: Measures) -> Finding:
    count = measures.latencies["ttft"].count
    sure = [f"p{100 * share:g}" for share in SHARES if bound_ranks(count, share)[1]]
    said = f"{count:,} samples: {', '.join(sure) or 'no percentile'} can be bounded from above"
    if len(sure) < len(SHARES):
        said += "; a p99 takes 299"
    return Finding("enough samples", len(sure) == len(SHARES), said)


def _failures(measures: Measures) -> Finding:
    bad = {name: n for name, n in measures.outcomes.items() if name != OK and n}
    share = sum(bad.values()) / max(1, measures.num_requests)
    said = ", ".join(f"{n:,} {name}" for name, n in bad.items()) or "every request ended well"
    return Finding("few failures", share <= MAX_FAILED_SHARE, said)


def _long_enough(measures: Measures) -> Finding:
    typical = measures["e2e.p50"] or 0.0
    is_ok = measures.duration_s >= 5 * typical
    said = f"{seconds(measures.duration_s)} for requests that take {seconds(typical)} (p50)"
    return Finding("long enough", is_ok, said)


def _steady(tally: Tally, is_open: bool) -> Finding:
    """Whether the queue still grew while requests arrived: then latency only says how long."""
    name = "steady state"
    if not is_open:
        return Finding(name, True, "a closed loop: as many in flight as there are users")
    drift = tally.drift()
    told = {
        Queue.STEADY: str(drift),
        Queue.GROWS: f"{drift}: more came than could be served",
        Queue.TOO_FEW: f"{Queue.TOO_FEW}: {drift}",
    }
    return Finding(name, drift.queue is Queue.STEADY, told[drift.queue])


def _client(measures: Measures, is_open: bool) -> Finding:
    delay, usual = measures["dispatch_delay.p99"], measures["ttft.p50"] or 0.0
    if delay is None:
        return Finding("client keeps up", False, "nothing was sent")
    limit = max(MAX_DISPATCH_S, MAX_DISPATCH_SHARE * usual)
    said = f"p99 of {seconds(delay)} late"
    if is_open and delay > limit:
        said += ": held back by --max-concurrency, or the load generator is the bottleneck"
    return Finding("client keeps up", delay <= limit, said)


@dataclass(slots=True)
class Report:
    """One run, ready to be shown. `settings` and `conditions` are plain values, told in full:

    settings: what was asked for; conditions: warm or cold, cache, precision, hardware, versions.
    """

    title: str
    tally: Tally
    settings: dict[str, Any]
    conditions: dict[str, Any]
    verdict: list[Finding]
    extra: dict[str, Any] = field(default_factory=dict)

    @property
    def measures(self) -> Measures:
        return self.tally.measures()

    @property
    def is_valid(self) -> bool:
        return all(finding.is_ok for finding in self.verdict)

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return {
            "title": self.title,
            "settings": self.settings,
            "conditions": self.conditions,
            "objectives": str(self.tally.objectives),
            "is_valid": self.is_valid,
            "verdict": [asdict(finding) for finding in self.verdict],
            "measures": self.measures.as_dict(),
            "by_kind": {k: t.measures().as_dict() for k, t in sorted(self.tally.by_kind.items())},
            "by_segment": {
                what: {label: segment.as_dict() for label, segment in sorted(found.items())}
                for what, found in self.tally.segments.items()
            },
            **self.extra,
        }

    def pictures(self) -> dict[str, Picture]:
        """By name: latencies, bounds, timeline, lengths."""
        return {
            "latencies": latency_curves(self.tally),
            "bounds": bounds(self.tally),
            "timeline": timeline(self.tally),
            "lengths": lengths(self.tally),
        }

    def table(self):
        """The latencies as a rich table."""
        from rich.box import SIMPLE_HEAD
        from rich.table import Table

        made = Table(title=self.title, title_justify="left", title_style="bold", box=SIMPLE_HEAD)
        made.add_column("", no_wrap=True)
        for heading in ("mean", "p50", "p90", "p95", "p99", "max", "p99 is within"):
            made.add_column(heading, justify="right", no_wrap=True)
        for cells in _latency_rows(self.measures):
            made.add_row(*cells)
        return made

    def lines(self) -> list[str]:
        """The rest in words: rates, objectives, verdict."""
        m = self.measures
        counts = ", ".join(f"{n:,} {name}" for name, n in m.outcomes.items())
        said = [
            f"{counts}, in {seconds(m.duration_s)}. Offered {_rate(m.offered_per_s)}, served "
            f"{_rate(m.requests_per_s)} requests/s; {_rate(m.output_tokens_per_s)} output tokens/s "
            f"({_rate(m.steady_tokens_per_s)} while steady), {m.cached_tokens:,} of "
            f"{m.prompt_tokens:,} prompt tokens from the cache."
        ]
        if m.attainment is not None:
            said.append(
                f"Objectives {self.tally.objectives}: {m.num_good:,} good, "
                f"{_rate(m.goodput_per_s)}/s, attainment {m.attainment:.1%}."
            )
        if m.deadline_attainment is not None:
            said.append(f"Deadlines met: {m.deadline_attainment:.1%}.")
        prefixes = self.tally.segments.get("prefix", {})
        if len(prefixes) > 1:
            told = (
                f"{seconds(part.ttft.percentile(0.95))} where the prefix was {how} ({part.count:,})"
                for how, part in sorted(prefixes.items())
            )
            said.append(f"TTFT p95: {', '.join(told)}.")
        wrong = [finding for finding in self.verdict if not finding.is_ok]
        if wrong:
            said += [f"NOT VALID, {finding.name}: {finding.said}." for finding in wrong]
        else:
            said.append("Valid: " + "; ".join(finding.said for finding in self.verdict) + ".")
        return said

    def html(self) -> str:
        """A page that needs nothing else: pictures, tables and all that was disclosed."""
        m = self.measures
        marks = {True: '<b class="ok">holds</b>', False: '<b class="bad">does not hold</b>'}
        verdict = [(escape(f.name), marks[f.is_ok], escape(f.said)) for f in self.verdict]
        headings = ("", "mean", "p50", "p90", "p95", "p99", "max", "p99 is within")
        latency = [[escape(cell) for cell in cells] for cells in _latency_rows(m)]
        kinds = [
            [escape(cell) for cell in _kind_row(kind, tally.measures())]
            for kind, tally in sorted(self.tally.by_kind.items())
        ]
        parts = [
            f"<h1>{escape(self.title)}</h1>",
            f"<p class='verdict {'ok' if self.is_valid else 'bad'}'>"
            f"{'Valid' if self.is_valid else 'Not valid: read the findings first'}</p>",
            _html_table(("check", "", "what was found"), verdict),
            *(f"<p>{escape(line)}</p>" for line in self.lines()[:-1] if "NOT VALID" not in line),
            "<h2>Latencies</h2>",
            _html_table(headings, latency),
            "<p>TTFT and end to end count from the intended send time; uncorrected, from the "
            "sending. ITL is pooled over requests. Bounds are of order statistics at 95 % each, "
            "for independent samples: in a long queue neighbours are alike, and they are wider."
            "</p>",
            *(picture.html() for picture in self.pictures().values()),
        ]
        if kinds:
            heads = ("kind", "ok", "TTFT p50", "TTFT p95", "ITL p95", "e2e p95", "attainment")
            parts += ["<h2>By kind of work</h2>", _html_table(heads, kinds)]
        if segments := _segment_rows(self.tally):
            heads = ("answers", "", "ok", "TTFT p50", "TTFT p95", "TPOT p50", "TPOT p95")
            parts += ["<h2>By length and cache</h2>", _html_table(heads, segments)]
        for name, values in (("Conditions", self.conditions), ("Settings", self.settings)):
            rows = [(escape(key), escape(_plain(value))) for key, value in values.items()]
            parts += [f"<h2>{name}</h2>", _html_table(("", ""), rows)]
        return _PAGE.format(title=escape(self.title), body="\n".join(parts))


def _latency_rows(measures: Measures) -> list[list[str]]:
    rows = []
    for name, label in NAMES.items():
        figures = measures.latencies[name]
        if figures.count:
            cells = [figures[at] for at in ("mean", "p50", "p90", "p95", "p99", "max")]
            rows.append([label, *map(seconds, cells), _between(figures)])
    return rows


def _between(figures: Figures) -> str:
    if "p99" not in figures.bounds:
        return ""
    lower, upper = figures.bounds["p99"]
    return f"{seconds(lower)} to {seconds(upper) if upper is not None else 'unknown'}"


def _kind_row(kind: str, m: Measures) -> list[str]:
    latencies = [seconds(m[name]) for name in ("ttft.p50", "ttft.p95", "itl.p95", "e2e.p95")]
    share = m.attainment if m.attainment is not None else m.deadline_attainment
    return [kind, f"{m.num_ok:,}", *latencies, "-" if share is None else f"{share:.1%}"]


def _segment_rows(tally: Tally) -> list[list[str]]:
    rows = []
    for what, found in tally.segments.items():
        for label, segment in sorted(found.items()):
            told = segment.as_dict()
            waits = (told[f"{name}_p{q}_s"] for name in ("ttft", "tpot") for q in (50, 95))
            cells = [what, label, f"{segment.count:,}", *map(seconds, waits)]
            rows.append([escape(cell) for cell in cells])
    return rows


def _rate(value: float | None) -> str:
    return "-" if value is None else f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _plain(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _html_table(headings: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    head = "".join(f"<th>{escape(heading)}</th>" for heading in headings)
    body = "".join(
        "<tr>" + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>" for cells in rows
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1"><title>{title}</title>
<style>
:root {{ color-scheme: light dark }}
body {{ font: 15px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto;
  padding: 0 1rem }}
table {{ border-collapse: collapse; margin: .5rem 0 1rem }}
td, th {{ padding: .2rem .7rem; text-align: right; border-bottom: 1px solid #8884;
  font-variant-numeric: tabular-nums; white-space: pre }}
td:first-child, th:first-child, td:last-child {{ text-align: left; white-space: pre-wrap }}
.ok {{ color: #00714f }} .bad {{ color: #c33d00 }}
.verdict {{ font-size: 1.3rem; font-weight: 600 }}
@media (prefers-color-scheme: dark) {{ .ok {{ color: #35c99b }} .bad {{ color: #ff8a55 }} }}
</style></head><body>
{body}
</body></html>
"""


def as_json_line(values: Mapping[str, Any]) -> str:
    """One line of JSON; what is not a number becomes null."""
    return json.dumps(_finite(values), ensure_ascii=False, separators=(",", ":"))


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: _finite(item) for key, item in value.items()}
    return [_finite(item) for item in value] if isinstance(value, list | tuple) else value
