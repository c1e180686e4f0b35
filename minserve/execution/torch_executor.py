"""The executor that computes: our decoder over a paged KV cache, on a CPU or a GPU."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

import torch

from minserve.errors import ConfigError
from minserve.events import TokenLogprob
from minserve.execution import cuda
from minserve.execution.cuda_graphs import DecodeGraphs, can_record
from minserve.execution.executor import Row, StepPlan, StepResult
from minserve.execution.memory import loading
from minserve.execution.precision import Precision, choose_dtype
from minserve.kv.estimate import KVShape
from minserve.models import cpu, kv_cache, lora
from minserve.models.attention.cuda import best_attention
from minserve.models.batch import TokenBatch
from minserve.models.config import ModelConfig
from minserve.models.decoder import Decoder
from minserve.models.invariant import make_invariant
from minserve.models.quantization import quantise_weights
from minserve.models.registry import resolve
from minserve.models.sampling import sample_rows
from minserve.models.tokenizer import Tokenizer
from minserve.models.weights import torch_dtype, weight_files


@dataclass(frozen=True, slots=True)
class FinishedStep:
    """A step that was computed at launch; collecting it costs nothing."""

    plan: StepPlan
    result: StepResult
    ready_at_s: float | None = None


class TorchExecutor:
    """Runs a Llama-family model; see `minserve.execution.executor.Executor` for the protocol.

    The step is computed during `launch`. Greedy output and KV are deterministic; with
    `batch_invariant` the logits of a token are the same bits whatever else is in the batch,
    however its prompt was cut, with prefix hits and after preemption, at a few times the cost.

    Args:
        model: A name, folder or hub id, as `minserve.models.registry.resolve` takes it.
        num_blocks: Blocks of the KV cache; see `num_blocks_for` to size it by memory. On a GPU
            None takes what is free, less some headroom.
        block_size: Tokens per block.
        dtype: float32, bfloat16 or float16, of weights, activations and KV cache; None chooses
            by device: float32 on a CPU, 16 bits on a GPU; `auto` takes bfloat16 on a CPU, too,
            where that computes in it.
        device: A torch device: `cpu`, `cuda`. On CUDA attention is `attention.cuda`'s choice, and
            steps that only decode are CUDA graphs.
        max_model_len: The longest sequence served; at most, and by default, what the model knows.
        adapters: LoRA adapters to load, names to PEFT folders; see `load_adapter`.
        kv_cache_dtype: `auto` keeps keys and values in `dtype`; `int8` in a byte per value and a
            scale per token and head, on a CPU.
        quantization: `int8` keeps the projections' weights in a byte each, on a CPU: see
            `minserve.models.quantization`; `none` as they are.
        fast: Use the kernels made for this CPU where there are any; without, plain torch.

    Raises `ConfigError` for a bad setting, and whatever loading a model raises.
    """

    def __init__(
        self,
        model: str | os.PathLike,
        *,
        num_blocks: int | None = None,
        block_size: int = 16,
        dtype: str | None = None,
        device: str = "cpu",
        batch_invariant: bool = False,
        max_model_len: int | None = None,
        adapters: Mapping[str, str | os.PathLike] | None = None,
        kv_cache_dtype: str = "auto",
        quantization: str = "none",
        fast: bool = True,
    ) -> None:
        if (num_blocks is not None and num_blocks < 1) or block_size < 1:
            raise ConfigError(
                f"{num_blocks} blocks of {block_size} tokens", "both must be at least 1"
            )
        dtype = choose_dtype(dtype, device)
        is_cuda, torch_type = torch.device(device).type == "cuda", torch_dtype(dtype)
        self.precision = Precision(dtype, quantization, kv_cache_dtype)
        if batch_invariant and kv_cache_dtype == "int8":
            raise ConfigError("batch-invariant kernels read no int8 KV cache", "choose one of them")
        if is_cuda and quantization != "none":
            raise ConfigError("int8 weights are for a CPU", "leave quantization out on a GPU")
        self.model_folder = resolve(model)
        self.config = ModelConfig.from_folder(self.model_folder)
        limit = self.config.max_position_embeddings
        if max_model_len is not None and not 1 <= max_model_len <= limit:
            raise ConfigError(
                f"max_model_len is {max_model_len}", f"use 1 to {limit}, what the model knows"
            )
        self.block_size = block_size
        self.max_model_len = max_model_len or limit
        self.dtype = dtype
        self.device = device
        self.batch_invariant = batch_invariant
        self.tokenizer = Tokenizer(self.model_folder)
        self.eos_token_ids = self.config.eos_token_ids
        self.cache_namespace = fingerprint(self.model_folder, str(self.precision))
        self.kv_cache_dtype = kv_cache_dtype
        cached_type = torch.int8 if kv_cache_dtype == "int8" else torch_type
        with loading():
            self.decoder = Decoder.load(
                self.model_folder, torch_type, device, max_model_len=self.max_model_len
            )
            if quantization == "int8":
                quantise_weights(self.decoder)
            if batch_invariant:
                make_invariant(self.decoder)
            elif fast and cpu.is_supported(self.decoder):
                cpu.make_fast(self.decoder, cached_type)
            elif is_cuda and fast and cached_type != torch.int8:
                self.decoder.attention = best_attention(self.config, block_size, torch_type, device)
            elif cached_type == torch.int8:
                raise ConfigError(
                    "an int8 KV cache needs Numba and a CPU", "leave kv_cache_dtype out"
                )
        self.adapters: frozenset[str] = frozenset()
        for name, adapter_folder in (adapters or {}).items():
            self.load_adapter(name, adapter_folder)
        if num_blocks is None:
            memory_bytes = cuda.kv_memory_bytes(device)
            num_blocks = num_blocks_for(
                self.config, memory_bytes, block_size, self.precision.kv_dtype
            )
        self.num_blocks = num_blocks
        self.kv_cache = kv_cache.allocate(self.config, num_blocks, block_size, cached_type, device)
        self.sampler = None
        """Chooses tokens in place of `sample_rows`, where somebody sets it."""
        self.graphs = None
        if is_cuda and can_record(self.decoder):
            self.graphs = DecodeGraphs(self.decoder, self.kv_cache, self.max_model_len)

    @property
    def kv_bytes_allocated(self) -> int:
        """Bytes that torch holds for the KV cache."""
        return self.kv_cache.untyped_storage().nbytes()

    @property
    def weight_bytes(self) -> int:
        """Bytes of the projections as they are kept, and of an embedding table that is none of
        them. What tied weights are kept twice for, and norms, are not counted.
        """
        decoder = self.decoder
        kept: list[torch.Tensor] = []
        for projection in (*decoder.projections(), decoder.vocabulary):
            kept.append(projection.weight)
            if (scales := getattr(projection.multiply, "scales", None)) is not None:
                kept.append(scales)
        if not self.config.tie_word_embeddings:
            kept.append(decoder.embeddings)
        return sum(tensor.numel() * tensor.dtype.itemsize for tensor in kept)

    def load_adapter(self, name: str, folder: str | os.PathLike) -> None:
        """Let requests choose the LoRA adapter in `folder` by `Request.adapter == name`.

        Between steps. Raises as `minserve.models.lora.load_adapter` does, and then keeps nothing.
        """
        lora.load_adapter(self.decoder, name, folder)
        self.adapters |= {name}

    def launch(self, plan: StepPlan, now_s: float) -> FinishedStep:
        """Copy blocks, compute every row, sample. Rows that cannot be computed fail alone."""
        for copy in plan.copies:
            self.kv_cache[:, :, copy.target] = self.kv_cache[:, :, copy.source]
        errors = {i: why for i, row in enumerate(plan.rows) if (why := self._refusal(row))}
        good = [i for i in range(len(plan.rows)) if i not in errors]
        tokens: list[tuple[int, ...]] = [()] * len(plan.rows)
        logprobs: dict[int, tuple[TokenLogprob, ...]] = {}
        # Rows of one adapter lie side by side, so that each adapter is one segment of the batch.
        good.sort(key=lambda i: plan.rows[i].adapter)
        # NOTE: a segment's length would decide how its sums are made, so a batch-invariant step
        # takes one adapter at a time, in the same tiles as everything else.
        apart = (lambda i: plan.rows[i].adapter) if self.batch_invariant else (lambda i: None)
        for _, group in groupby(good, key=apart):
            self._compute(plan.rows, list(group), tokens, logprobs, errors)
        return FinishedStep(plan, StepResult(tuple(tokens), errors, logprobs))

    def collect(self, handle: FinishedStep) -> StepResult:
        """The result of a launched step."""
        return handle.result

    def _refusal(self, row: Row) -> str | None:
        if not 0 <= min(row.token_ids) <= max(row.token_ids) < self.config.vocab_size:
            return f"a token id is outside the model's vocabulary of {self.config.vocab_size}"
        if row.num_context_tokens > self.max_model_len:
            return f"position {row.num_context_tokens - 1} is beyond {self.max_model_len} tokens"
        if row.adapter and row.adapter not in self.adapters:
            loaded = ", ".join(sorted(self.adapters)) or "none"
            return f"adapter {row.adapter!r} is not loaded (loaded: {loaded})"
        return None

    @torch.inference_mode()
    def _compute(
        self,
        rows: tuple[Row, ...],
        good: list[int],
        tokens: list[tuple[int, ...]],
        logprobs: dict[int, tuple[TokenLogprob, ...]],
        errors: dict[int, str],
    ) -> None:
        """Run the rows `good` of `rows`; fill in their `tokens` and `logprobs`, or `errors`."""
        computed = [rows[i] for i in good]
        batch = TokenBatch.of(
            computed,
            self.block_size,
            self.decoder.attention,
            self.device,
            self.config.windows,
        )
        sampling = [n for n, i in enumerate(good) if rows[i].sample]
        ends = batch.ends.tolist()
        # A row with guesses is sampled at each of them, and at the token before the first.
        wanted = [
            place
            for n in sampling
            for place in range(ends[n] - 1 - computed[n].num_draft_tokens, ends[n])
        ]
        if self.graphs and self.graphs.fits(computed):
            logits, finite = self.graphs(batch)
        else:
            places = torch.tensor(wanted, dtype=torch.int64, device=self.device)
            logits, finite = self.decoder(batch, self.kv_cache, places)
        if not finite.all():
            self._clear(batch.slots[~finite])
            starts = [0, *ends]
            for n, i in enumerate(good):
                if not finite[starts[n] : starts[n + 1]].all():
                    errors[i] = "the model's activations are not finite (NaN or overflow)"
            logits = logits.nan_to_num()
        sample = self.sampler or sample_rows
        sampled = sample(logits, [computed[n] for n in sampling], self.eos_token_ids)
        for n, chosen, asked in zip(sampling, *sampled, strict=True):
            if good[n] not in errors:
                tokens[good[n]] = chosen
                if asked:
                    logprobs[good[n]] = asked

    def _clear(self, slots: torch.Tensor) -> None:
        """Zero the KV of failed tokens, so that whoever has the block next finds no NaN in it."""
        self.kv_cache[:, :, slots // self.block_size, slots % self.block_size] = 0


def num_blocks_for(
    config: ModelConfig, memory_bytes: int, block_size: int = 16, dtype: str = "float32"
) -> int:
    """How many KV blocks, of values of `dtype` (`Precision.kv_dtype`), fit in `memory_bytes`.

    Raises `ConfigError` if not even one does.
    """
    shape = KVShape(config.num_hidden_layers, config.num_kv_heads, config.head_dim)
    block_bytes = block_size * shape.bytes_per_token(dtype)
    if memory_bytes < block_bytes:
        raise ConfigError(
            f"{memory_bytes:,} bytes hold no KV block of {block_bytes:,} bytes",
            "give the KV cache more memory, or use smaller blocks",
        )
    return memory_bytes // block_bytes


def fingerprint(folder: Path, precision: str) -> str:
    """A short name for model, tokenizer, template and precision, in which spaces are dashes.

    Hashes the small files whole, and of each weight file its size and both ends (64 KiB): another
    training run of the same shape differs there. Not a protection against a forged file.
    """
    digest = hashlib.sha256(precision.encode())
    names = ("config.json", "tokenizer.json", "tokenizer_config.json", "chat_template.jinja")
    for name in names:
        file = folder / name
        content = file.read_bytes() if file.is_file() else b""
        digest.update(f"{name} {len(content)}\n".encode() + content)
    for file in weight_files(folder):
        size = file.stat().st_size
        digest.update(f"{file.name} {size}\n".encode())
        with file.open("rb") as weights:
            digest.update(weights.read(65536))
            weights.seek(max(0, size - 65536))
            digest.update(weights.read())
    words = precision.replace(",", "").replace(" ", "-")
    return f"{folder.name}-{words}-{digest.hexdigest()[:16]}"
