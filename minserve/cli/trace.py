"""`minserve trace ID`: the life of one request, drawn in the terminal and as a picture."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from minserve.cli.console import Json, out, print_json
from minserve.cli.server_url import DEFAULT_URL, Key, ServerReader, Url
from minserve.errors import ConfigError

# Okabe and Ito's colours (2008); each kind also has a sign of its own.
KINDS = {
    "queued": ("waiting", "░", "bright_black", "#BBBBBB"),
    "prefill": ("reading the prompt", "█", "blue", "#0072B2"),
    "decode": ("writing", "▒", "dark_orange", "#E69F00"),
}
MAX_LINES = 24


def trace(
    request_id: Annotated[str, typer.Argument(help="The `id` of an answer, such as chatcmpl-1f.")],
    url: Url = DEFAULT_URL,
    key: Key = None,
    png: Annotated[Path | None, typer.Option(help="Also write the picture to this file.")] = None,
    as_json: Json = False,
) -> None:
    """Draw what happened to one recent request: waiting, prefill chunks, decode, preemptions.

    A trace is readable with a key of the tenant that sent the request, or an operator's.

    Examples:

    - `minserve trace chatcmpl-5f1c`

    - `minserve trace chatcmpl-5f1c --key $KEY --png trace.png`
    """
    from urllib.parse import quote

    told = ServerReader(url, key).get(f"/v1/traces/{quote(request_id, safe='')}")
    if png is not None:
        try:
            figure(told).savefig(png, dpi=160)
        except (OSError, ValueError) as error:
            raise ConfigError(
                f"cannot write {png}: {error}", "give a path that ends .png"
            ) from None
    if as_json:
        return print_json(told)
    console = out()
    console.print(drawing(told, min(console.width, 108)))
    if png is not None:
        console.print(f"\nThe picture is in {png}")


def end_s(told: dict[str, Any]) -> float:
    """When the trace ends, or how far it has come."""
    return max([told["finished_s"] or 0.0, *(span["end_s"] for span in told["spans"]), 1e-6])


def lanes(told: dict[str, Any]) -> list[tuple[str, list[dict[str, Any]]]]:
    """(label, spans) of each line: prefill chunks beyond what fits share the last of theirs."""
    lines: list[tuple[str, list[dict[str, Any]]]] = []
    for span in told["spans"]:
        name = KINDS[span["kind"]][0]
        if lines and lines[-1][0] == name:
            lines[-1][1].append(span)
        elif len(lines) < MAX_LINES:
            lines.append((name, [span]))
        else:
            lines[-1][1].append(span)
    return lines


def drawing(told: dict[str, Any], width: int):
    """A waterfall in text: a line for each stretch of the request's life."""
    from rich.text import Text

    whole_s, label_width, note_width = end_s(told), 20, 36
    columns = max(10, width - label_width - note_width)
    text = Text()
    text.append(f"{told['id']}", "bold").append(
        f"   {told['workload_class']}, {told['state']}: {told['num_prompt_tokens']:,} tokens in"
        f" ({told['num_cached_tokens']:,} cached), {told['num_output_tokens']:,} out\n\n"
    )
    for label, spans in lanes(told):
        cells, style, sign = [" "] * columns, "", " "
        for span in spans:
            _, sign, style, _ = KINDS[span["kind"]]
            first = min(columns - 1, int(span["start_s"] / whole_s * columns))
            last = max(first + 1, round(span["end_s"] / whole_s * columns))
            cells[first:last] = sign * len(cells[first:last])
        text.append(f"{label:<{label_width}}").append("".join(cells), style)
        text.append(f"  {_note(spans)}\n", "bright_black")
    text.append(f"{'':<{label_width}}0{_ms(whole_s):>{columns - 1}}\n", "bright_black")
    if told["preempted_s"]:
        times = ", ".join(map(_ms, told["preempted_s"]))
        text.append(f"preempted at {times}: its blocks went to others\n")
    for attempt in told.get("attempts", ()):
        when = f"{_ms(attempt['start_s'])} to {_ms(attempt['end_s'])}"
        text.append(f"asked {attempt['model']}: {attempt['outcome']} ({when})\n")
    figures = [("waited", "queue_delay_s"), ("first token", "ttft_s")]
    figures += [("a token", "tpot_s"), ("in all", "e2e_s"), ("deadline", "deadline_s")]
    for name, field in figures:
        if told[field] is not None:
            text.append(f"\n{name:<{label_width}}").append(_ms(told[field]), "bold")
    return text


def figure(told: dict[str, Any]):
    """The same waterfall as a matplotlib figure."""
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch

    lines = lanes(told)
    drawn = Figure(figsize=(9, 1.5 + 0.38 * len(lines)), layout="constrained")
    axes = drawn.subplots()
    for line, (_, spans) in enumerate(lines):
        for span in spans:
            bar = [(1000 * span["start_s"], 1000 * (span["end_s"] - span["start_s"]))]
            colour = KINDS[span["kind"]][3]
            axes.broken_barh(bar, (line + 0.15, 0.7), color=colour, ec="white", lw=0.6)
    for time_s in told["preempted_s"]:
        axes.axvline(1000 * time_s, color="#D55E00", lw=1.2, ls="--")
    if told["deadline_s"] is not None and told["deadline_s"] <= 1.2 * end_s(told):
        axes.axvline(1000 * told["deadline_s"], color="#222222", lw=1.2, ls=":")
    axes.set_ylim(max(1, len(lines)), 0)
    axes.set_yticks([line + 0.5 for line in range(len(lines))], [name for name, _ in lines])
    axes.set_xlim(0, 1000 * end_s(told) * 1.01)
    axes.set_xlabel("milliseconds since it arrived")
    axes.set_title(
        f"{told['num_prompt_tokens']:,} tokens in ({told['num_cached_tokens']:,} cached), "
        f"{told['num_output_tokens']:,} out",
        loc="left",
        fontsize=11,
    )
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.tick_params(axis="y", length=0)
    shown = {span["kind"] for span in told["spans"]}
    handles = [
        Patch(color=c, label=name) for kind, (name, _, _, c) in KINDS.items() if kind in shown
    ]
    drawn.legend(handles=handles, loc="outside lower center", ncols=3, frameon=False)
    return drawn


def _note(spans: list[dict[str, Any]]) -> str:
    took_s = spans[-1]["end_s"] - spans[0]["start_s"]
    tokens, steps = (sum(span[name] for span in spans) for name in ("num_tokens", "num_steps"))
    if not steps:
        return _ms(took_s)
    return f"{_ms(took_s)}, {tokens:,} tokens, {steps} step{'s' * (steps != 1)}"


def _ms(value_s: float) -> str:
    return f"{value_s:.2f} s" if value_s >= 1 else f"{1000 * value_s:.1f} ms"
