"""What a CUDA device has room for, and which precision suits it. Never yet run on a GPU."""

from __future__ import annotations

import torch

from minserve.errors import ConfigError

HEADROOM = 0.1  # of the device's memory, for activations, CUDA graphs and other programs


def default_dtype(device: str) -> str:
    """bfloat16 where the card computes in it (from compute capability 8.0), float16 on older
    ones; float32 elsewhere.
    """
    if torch.device(device).type != "cuda":
        return "float32"
    major, _ = torch.cuda.get_device_capability(device)
    return "bfloat16" if major >= 8 else "float16"


def check_device(device: str) -> None:
    """Raises `ConfigError` for a device that is unknown, or absent here."""
    try:
        kind = torch.device(device).type
    except RuntimeError:
        raise ConfigError(f"device {device!r} is unknown", "use cpu or cuda") from None
    if kind == "cuda" and not torch.cuda.is_available():
        raise ConfigError("there is no CUDA device here", "use device cpu")


def kv_memory_bytes(device: str) -> int:
    """Free memory for the KV cache once the weights are loaded. Raises `ConfigError` for a CPU,
    whose memory is not ours alone.
    """
    if torch.device(device).type != "cuda":
        raise ConfigError("num_blocks is not given", "only on a GPU can it be left out")
    free_bytes, total_bytes = torch.cuda.mem_get_info(device)
    return max(0, free_bytes - int(HEADROOM * total_bytes))
