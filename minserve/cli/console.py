"""What all commands print with: words on standard output, progress on standard error."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer

Json = Annotated[
    bool, typer.Option("--json", help="Print the figures as JSON, on the last line of output.")
]
Model = Annotated[
    str, typer.Option(help="`nano`, `smollm2`, a folder, a GGUF file or a hub id. See `models`.")
]

Dtype = Annotated[
    str,
    typer.Option(help="float32, bfloat16, float16, or auto: bfloat16 if the CPU computes in it."),
]
KvCacheDtype = Annotated[
    str, typer.Option(help="KV cache: auto (as dtype) or int8 (half of 16-bit, scales too).")
]
Quantization = Annotated[
    str, typer.Option(help="Weights: none (as dtype) or int8 (a byte each: for few requests).")
]


def print_json(content: dict[str, Any]) -> None:
    """One line, the last one that a command writes."""
    print(json.dumps(content, ensure_ascii=False), flush=True)


def out():
    """A rich console on standard output, wide enough for the table whatever the terminal is.

    Imported late, to keep `--help` quick.
    """
    from rich.console import Console

    return Console(highlight=False, width=max(108, Console().width))


def size(num_bytes: float) -> str:
    """Bytes in decimal units, for people: 46,080 bytes is `46.1 KB`."""
    for unit in ("B", "KB", "MB", "GB"):
        if num_bytes < 1000 or unit == "GB":
            return f"{num_bytes:,.0f} {unit}" if unit == "B" else f"{num_bytes:,.1f} {unit}"
        num_bytes /= 1000
    return ""
