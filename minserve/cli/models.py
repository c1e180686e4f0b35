"""`minserve models`: which models there are, and which of them are on this machine."""

from __future__ import annotations

from minserve.cli.console import Json, out, print_json, size


def models(json: Json = False) -> None:
    """List the models with a short name: what is here, how large, how much they can read.

    Any folder or Hugging Face id of a supported family works too, wherever a command takes
    `--model`. Nothing is fetched by this command.

    Examples:

    - `minserve models`

    - fetching SmolLM2, the first time: `minserve generate "Hello" --model smollm2`
    """
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    from minserve.models.config import ModelConfig
    from minserve.models.registry import ALIASES, known_models

    found = []
    for model in known_models():
        about = {
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
                "parameters": config.num_parameters,
                "weights_bytes": weights,
                "has_weights": weights > 0,
                "weights_dtype": config.dtype,
                "context_tokens": config.max_position_embeddings,
            }
        found.append(about)

    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for column in ("name", "here", "weights", "parameters", "context", "what it is"):
        justify = "right" if column in ("parameters", "context") else "left"
        table.add_column(column, justify=justify, no_wrap=column == "name")
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
    if json:
        print_json({"models": found})
