"""What a simulated replica is: its costs, measured or estimated, and its memory."""

from __future__ import annotations

from dataclasses import dataclass, replace

from minserve.execution.simulated import CostModel, SimulatedExecutor


@dataclass(frozen=True, slots=True)
class Profile:
    """What a simulated replica is: its cost model, and how much its KV cache holds.

    `source` says where the figures come from; a report repeats it. `load_s` is how long a new
    replica takes until it can serve.
    """

    name: str
    cost: CostModel
    num_blocks: int
    block_size: int = 16
    max_model_len: int = 8192
    load_s: float = 0.0
    source: str = ""

    def executor(self) -> SimulatedExecutor:
        """A fresh replica's executor."""
        return SimulatedExecutor(
            self.num_blocks,
            self.block_size,
            cost=self.cost,
            max_model_len=self.max_model_len,
            token=_same_token,
        )

    def resized(self, num_blocks: int | None, block_size: int | None = None) -> Profile:
        """With another pool, where one is given."""
        return replace(
            self,
            num_blocks=num_blocks or self.num_blocks,
            block_size=block_size or self.block_size,
        )


def _same_token(row) -> int:
    """Every answer is the same word: what is said does not matter, and costs nothing to make."""
    return 19


def roofline(
    name: str,
    *,
    parameters: float,
    layers: int,
    hidden: int,
    kv_bytes_per_token: float,
    bytes_per_parameter: float,
    flops_per_s: float,
    bytes_per_s: float,
    memory_bytes: float,
    overhead_s: float,
    load_bytes_per_s: float,
    max_model_len: int,
    efficiency: float = 0.5,
) -> Profile:
    """A profile from published peak figures: an estimate of a machine nobody here has measured.

    A step reads all weights once, each computed token costs 2 x parameters of arithmetic, each
    query-key pair 4 x layers x hidden, and each row reads its context's keys and values; every
    part at `efficiency` of its peak, and none overlapping another (Pope et al., 2022).
    """
    compute, bandwidth = flops_per_s * efficiency, bytes_per_s * efficiency
    weights = parameters * bytes_per_parameter
    cost = CostModel(
        per_step_s=overhead_s + weights / bandwidth,
        per_token_s=2 * parameters / compute,
        per_row_s=0.0,
        per_context_token_s=4 * layers * hidden / compute,
        per_read_token_s=kv_bytes_per_token / bandwidth,
    )
    num_tokens = int((memory_bytes * 0.9 - weights) / kv_bytes_per_token)
    return Profile(
        name,
        cost,
        num_tokens // 16,
        16,
        max_model_len,
        load_s=weights / load_bytes_per_s,
        source=f"estimated from peak figures at {efficiency:.0%} of them, not measured",
    )


# Llama 3.1 8B in bfloat16 (its config.json: 32 layers, 8 KV heads of 128) on one H100 SXM
# (NVIDIA's data sheet: 989 Tflop/s dense bfloat16, 3.35 TB/s, 80 GB). Loading from disk at 2 GB/s.
H100_LLAMA_8B = roofline(
    "h100-llama-3.1-8b",
    parameters=8.03e9,
    layers=32,
    hidden=4096,
    kv_bytes_per_token=2 * 32 * 8 * 128 * 2,
    bytes_per_parameter=2,
    flops_per_s=989e12,
    bytes_per_s=3.35e12,
    memory_bytes=80e9,
    overhead_s=2e-3,
    load_bytes_per_s=2e9,
    max_model_len=131_072,
)
NANO = Profile(
    "nano",
    CostModel(),
    2048,
    source="round figures of the size of northstar-nano on two CPU cores, not measured",
)
PROFILES = {profile.name: profile for profile in (NANO, H100_LLAMA_8B)}
