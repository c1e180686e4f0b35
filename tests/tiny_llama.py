"""Random checkpoints of a few thousand weights, and ways to drive an executor with them."""

from __future__ import annotations

import json
from pathlib import Path

from minserve.execution.executor import Row, StepPlan
from minserve.request import SamplingParams

TEXT = "Refunds take five days. Große Ärger 日本語 🎉 café, 1234567890!"
CHAT_TEMPLATE = (
    "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def write_checkpoint(folder: Path, seed: int = 0, family: str = "Llama", **overrides) -> Path:
    """A float32 model with a byte-level tokenizer, saved the way transformers saves one.

    `family` is Llama, Mistral, Qwen2 or Qwen3; `overrides` go into its config.
    """
    import torch
    import transformers

    settings = {
        "vocab_size": 300,
        "hidden_size": 64,
        "intermediate_size": 112,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 512,
        "tie_word_embeddings": False,
        "eos_token_id": 299,
        "initializer_range": 0.1,  # far from uniform, so that an argmax is not a coin toss
    }
    torch.manual_seed(seed)
    config = getattr(transformers, f"{family}Config")(**(settings | overrides))
    model = getattr(transformers, f"{family}ForCausalLM")(config)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            # transformers begins with biases of 0 and norms of 1, which would hide a missing one.
            if name.endswith("bias") or "q_norm" in name or "k_norm" in name:
                weight.add_(torch.randn_like(weight) * 0.3)
    model.save_pretrained(folder)
    write_tokenizer(folder)
    return folder


def write_tokenizer(folder: Path) -> None:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=280,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=["<|end|>"],
        show_progress=False,
    )
    tokenizer.train_from_iterator([TEXT], trainer)
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {"eos_token": "<|end|>", "chat_template": CHAT_TEMPLATE}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")


def step(executor, *rows: Row, copies=()):
    """Launch and collect one step."""
    return executor.collect(executor.launch(StepPlan(0, rows, tuple(copies)), 0.0))


def row(
    tokens,
    blocks,
    start: int = 0,
    sample: bool = True,
    position: int = 0,
    sampling: SamplingParams | None = None,
) -> Row:
    return Row(
        "r", tuple(tokens), start, tuple(blocks), sample, position, sampling or SamplingParams()
    )


def generate(executor, prompt, blocks, num_tokens: int, sampling=None, start: int = 0) -> list[int]:
    """Decode alone: the tokens that follow `prompt`, whose first `start` are in the cache."""
    out: list[int] = []
    tokens = list(prompt)[start:]
    while len(out) < num_tokens:
        result = step(executor, row(tokens, blocks, start, position=len(out), sampling=sampling))
        assert not result.errors, result.errors
        start += len(tokens)
        tokens = list(result.token_ids[0])
        out += tokens
    return out
