"""A server in int8: what it says of itself, what its pool holds, and that it answers as before."""

from __future__ import annotations

import pytest

from minserve.kv.estimate import KVShape
from minserve.models import jit
from minserve.models.config import ModelConfig
from minserve.models.registry import resolve

QUESTION = (
    "Evidence:\n- The deposit of Umber Club is 40 EUR.\n"
    "Question: What is the deposit of Umber Club?"
)


@pytest.mark.skipif(not jit.is_available(), reason="an int8 cache needs numba")
def test_int8_weights_and_cache_are_served_and_the_pool_holds_what_the_estimate_says(
    start_process, nano
):
    options = ("--kv-cache-dtype", "int8", "--quantization", "int8", "--kv-memory", "1MB")
    server = start_process(*options)
    assert server.lines("listening")[0]["precision"] == "float32, int8 weights, int8 KV"
    config = ModelConfig.from_folder(resolve("nano"))
    shape = KVShape(config.num_hidden_layers, config.num_kv_heads, config.head_dim)
    blocks = 10**6 // (16 * shape.bytes_per_token("int8"))
    [card, *_] = server.client().models.list()
    assert card.precision == "float32, int8 weights, int8 KV"  # for load reports
    assert card.max_model_len == 16 * blocks > 16 * (10**6 // (16 * shape.bytes_per_token()))

    def answer(process) -> str:
        messages = [{"role": "user", "content": QUESTION}]
        asked = process.client().chat.completions.create(
            model="nano", messages=messages, temperature=0, max_tokens=30
        )
        return asked.choices[0].message.content

    assert "40 EUR" in answer(server) == answer(nano)
