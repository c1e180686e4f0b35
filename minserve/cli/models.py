"""`minserve models`: which models there are, and what any one of them is."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from minserve.cli.console import Json, out, print_json, size


def models(
    model: Annotated[
        str | None,
        typer.Argument(help="A name, folder, GGUF file or Hugging Face id to tell about."),
    ] = None,
    json: Json = False,
) -> None:
    """List the models with a short name, or say what one model is: family, size, context.

    Any folder, GGUF file or Hugging Face id of a supported family works, wherever a command takes
    `--model`. No weights are fetched or converted by this command; of an id, only the config is.

    Examples:

    - `minserve models`

    - `minserve models ./Qwen3-0.6B`

    - `minserve models ./smollm2.Q4_1.gguf --json`

    - fetching SmolLM2, the first time: `minserve generate "Hello" --model smollm2`
    """
    report = {"models": _all()} if model is None else _one(model)
    if json:
        print_json(report)


def _all() -> list[dict[str, Any]]:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    from minserve.models.config import ModelConfig
    from minserve.models.registry import ALIASES, known_models

    found = []
    for model in known_models():
        about: dict[str, Any] = {
            "name": model.name,
            "aliases": [alias for alias, name in ALIASES.items() if name == model.name],
            "description": model.description,
            "fetched": model.folder is not None,
        }
        if model.folder is not None:
            config = ModelConfig.from_folder(model.folder)
            weights = sum(file.stat().st_size for file in model.folder.glob("*.safetensors"))
            about |= {
                "folder": str(model.folder),
                "family": config.family,
                "parameters": config.num_parameters,
                "weights_bytes": weights,
                "has_weights": weights > 0,
                "weights_dtype": config.dtype,
                "context_tokens": config.max_position_embeddings,
            }
        found.append(about)

    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for column in ("name", "here", "weights", "parameters", "context", "what it is"):
        is_number = column in ("parameters", "context")
        table.add_column(column, justify="right" if is_number else "left", no_wrap=column == "name")
    for about in found:
        here = "no" if not about["fetched"] else "yes" if about["has_weights"] else "no weights"
        table.add_row(
            ", ".join([about["name"], *about["aliases"][:1]]),
            here,
            f"{size(about['weights_bytes'])} {about['weights_dtype']}" if about["fetched"] else "-",
            f"{about['parameters'] / 1e6:,.1f} M" if about["fetched"] else "-",
            f"{about['context_tokens']:,}" if about["fetched"] else "-",
            about["description"],
        )
    out().print(table)
    return found


def _one(name: str) -> dict[str, Any]:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    from minserve.errors import ModelNotFound
    from minserve.kv.estimate import DTYPE_BYTES, KVShape
    from minserve.models.registry import ALIASES, config_of, known_models

    short = ALIASES.get(name.lower(), name.lower())
    if short in [known.name for known in known_models() if known.folder is None]:
        raise ModelNotFound(
            f"{short} is not on this machine yet",
            f'fetch it with: minserve generate "Hello" --model {short}',
        )
    config = config_of(name)
    kv = KVShape(config.num_hidden_layers, config.num_kv_heads, config.head_dim)
    windows = sorted({window for window in config.windows if window})
    report: dict[str, Any] = {
        "model": name,
        "family": config.family,
        "architecture": config.architecture,
        "parameters": config.num_parameters,
        "context_tokens": config.max_position_embeddings,
        "layers": config.num_hidden_layers,
        "heads": config.num_attention_heads,
        "kv_heads": config.num_kv_heads,
        "head_dim": config.head_dim,
        "vocab_size": config.vocab_size,
        "sliding_windows": windows,
        "rope_scaling": type(config.rope_scaling).__name__ if config.rope_scaling else None,
        "weights_dtype": config.dtype,
        "weights_bytes": {
            dtype: config.num_parameters * width
            for dtype, width in DTYPE_BYTES.items()
            if dtype != "int8"
        },
        "kv_bytes_per_token": {dtype: kv.bytes_per_token(dtype) for dtype in DTYPE_BYTES},
    }
    out().print(
        f"{name}: {config.family}, {config.num_parameters / 1e6:,.1f} M parameters "
        f"(shipped as {config.dtype}), context {config.max_position_embeddings:,} tokens\n"
        f"{config.num_hidden_layers} layers, {config.num_attention_heads} heads over "
        f"{config.num_kv_heads} KV heads of {config.head_dim}, vocabulary {config.vocab_size:,}"
        + "".join(f", sliding window of {window:,} tokens" for window in windows)
    )
    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for column in ("precision", "weights", "KV per token", "KV of a full context"):
        table.add_column(column, justify="left" if column == "precision" else "right")
    for dtype, per_token in report["kv_bytes_per_token"].items():
        weights = report["weights_bytes"].get(dtype)
        full = per_token * config.max_position_embeddings
        table.add_row(dtype, size(weights) if weights else "-", size(per_token), size(full))
    out().print(table)
    return report
