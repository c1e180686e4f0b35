"""Derive the quantile tables beside this file from the public traces, which are not copied here.

    python data/traces/derive.py FOLDER_WITH_THE_TRACES

FOLDER holds azure_conv.csv and mooncake_conversation.jsonl (README.md says where they come from).
A table keeps the joint distribution of lengths coarsely: quantiles of the prompt length, and for
each tenth of the requests by prompt length the quantiles of their output length. Standard library
only, and the same input gives the same bytes.
"""

from __future__ import annotations

import csv
import json
import sys
from collections import Counter
from datetime import datetime
from pathlib import Path
from statistics import fmean, pvariance

HERE = Path(__file__).resolve().parent
NUM_BANDS = 10
PROMPT_GRID = [0, 0.01, 0.02] + [n / 20 for n in range(1, 20)] + [0.98, 0.99, 1]
OUTPUT_GRID = [0, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99, 1]
WINDOWS_S = (1, 10, 60)

Pair = tuple[int, int]
"""(prompt tokens, output tokens) of one request."""

AZURE = {
    "trace": "AzureLLMInferenceTrace_conv (2023-11-16)",
    "source": "https://github.com/Azure/AzurePublicDataset",
    "licence": "CC-BY-4.0",
    "citation": "Patel et al., Splitwise: Efficient Generative LLM Inference Using Phase "
    "Splitting, ISCA 2024",
    "changes": "reduced to quantiles; no row of the trace is kept",
}
MOONCAKE = {
    "trace": "Mooncake conversation_trace.jsonl (2024)",
    "source": "https://github.com/kvcache-ai/Mooncake",
    "licence": "Apache-2.0",
    "citation": "Qin et al., Mooncake: A KVCache-centric Disaggregated Architecture for LLM "
    "Serving, 2024",
    "changes": "reduced to quantiles; no row of the trace is kept",
}


def quantile(values: list[float], share: float) -> float:
    """The value below which `share` of sorted `values` lie, interpolated linearly."""
    position = share * (len(values) - 1)
    low = int(position)
    high = min(low + 1, len(values) - 1)
    return values[low] + (values[high] - values[low]) * (position - low)


def lengths_table(pairs: list[Pair]) -> dict:
    """Quantiles of prompts, and of outputs within each band of equally many prompts."""
    pairs = sorted(pairs)
    prompts = [prompt for prompt, _ in pairs]
    size = len(pairs) / NUM_BANDS
    bands = []
    for band in range(NUM_BANDS):
        rows = pairs[round(band * size) : round((band + 1) * size)]
        outputs = sorted(output for _, output in rows)
        bands.append([round(quantile(outputs, share), 1) for share in OUTPUT_GRID])
    return {
        "num_requests": len(pairs),
        "prompt_grid": PROMPT_GRID,
        "prompt_tokens": [round(quantile(prompts, share), 1) for share in PROMPT_GRID],
        "output_grid": OUTPUT_GRID,
        "output_tokens_by_prompt_band": bands,
    }


def arrivals_table(times_s: list[float]) -> dict:
    """How arrivals vary: of gaps the coefficient of variation, of counts the dispersion."""
    gaps = [later - earlier for earlier, later in zip(times_s, times_s[1:], strict=False)]
    dispersion = {}
    for window_s in WINDOWS_S:
        counts = Counter(int((time_s - times_s[0]) // window_s) for time_s in times_s)
        whole = int((times_s[-1] - times_s[0]) // window_s)
        series = [counts[index] for index in range(whole)]
        dispersion[str(window_s)] = round(pvariance(series) / fmean(series), 2)
    return {
        "mean_rate_per_s": round(len(times_s) / (times_s[-1] - times_s[0]), 3),
        "gap_coefficient_of_variation": round(pvariance(gaps) ** 0.5 / fmean(gaps), 3),
        "index_of_dispersion_by_window_s": dispersion,
    }


def reuse_table(requests: list[list[int]]) -> dict:
    """Share of 512-token prompt blocks that an earlier request had, with an endless cache."""
    seen: set[int] = set()
    total = reused = 0
    for blocks in requests:
        total += len(blocks)
        reused += sum(block in seen for block in blocks)
        seen.update(blocks)
    return {"block_tokens": 512, "reusable_share_with_endless_cache": round(reused / total, 4)}


def read_azure(path: Path) -> tuple[list[Pair], list[float]]:
    """Lengths and arrival times, in seconds, of the trace's requests."""
    with path.open(newline="", encoding="utf-8-sig") as file:
        rows = list(csv.DictReader(file))
    pairs = [(int(row["ContextTokens"]), int(row["GeneratedTokens"])) for row in rows]
    # NOTE: seven decimals; datetime takes six.
    times = [datetime.fromisoformat(row["TIMESTAMP"][:26]).timestamp() for row in rows]
    return pairs, sorted(times)


def read_mooncake(path: Path) -> tuple[list[Pair], list[list[int]]]:
    """Lengths and prefix blocks of the trace's requests; its times are in steps of 3 s: unused."""
    with path.open(encoding="utf-8") as file:
        rows = [json.loads(line) for line in file]
    pairs = [(row["input_length"], row["output_length"]) for row in rows]
    return pairs, [row["hash_ids"] for row in rows]


def derive(folder: Path) -> dict[str, dict]:
    """File name to table."""
    pairs, times_s = read_azure(folder / "azure_conv.csv")
    azure = {"attribution": AZURE, **lengths_table(pairs), "arrivals": arrivals_table(times_s)}
    pairs, blocks = read_mooncake(folder / "mooncake_conversation.jsonl")
    mooncake = {"attribution": MOONCAKE, **lengths_table(pairs), "prefix": reuse_table(blocks)}
    return {"azure_conv.json": azure, "mooncake_conversation.json": mooncake}


def main() -> None:
    if len(sys.argv) != 2 or not Path(sys.argv[1]).is_dir():
        sys.exit(__doc__)
    for name, table in derive(Path(sys.argv[1])).items():
        text = json.dumps(table, indent=1)
        (HERE / name).write_text(text + "\n", encoding="utf-8")
        print(f"wrote {HERE / name} ({len(text)} bytes)")


if __name__ == "__main__":
    main()
