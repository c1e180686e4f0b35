"""Variants of `paged_attention`; see `variants` for their form."""

ATTEND = """
    import torch

    def attend(query, key_cache, value_cache, block_table, num_context_tokens):
        keys = key_cache[block_table].flatten(0, 1)[:num_context_tokens]
        values = value_cache[block_table].flatten(0, 1)[:num_context_tokens]
        group = query.shape[0] // keys.shape[1]
        keys = keys.repeat_interleave(group, dim=1)
        values = values.repeat_interleave(group, dim=1)
        scores = torch.einsum("hd,thd->ht", query, keys) / query.shape[1] ** 0.5
        weights = torch.softmax(scores, dim=1)
        return torch.einsum("ht,thd->hd", weights, values)
"""

ATTEND_BY_LOOP = """
    import math
    import torch

    def attend(query, key_cache, value_cache, block_table, num_context_tokens):
        size, kv_heads = key_cache.shape[1], key_cache.shape[2]
        out = torch.zeros_like(query)
        for head in range(len(query)):
            kv_head = head // (len(query) // kv_heads)
            scores, values = [], []
            for position in range(num_context_tokens):
                block, slot = block_table[position // size], position % size
                key = key_cache[block, slot, kv_head]
                scores.append(float(query[head] @ key) / math.sqrt(len(key)))
                values.append(value_cache[block, slot, kv_head])
            highest = max(scores)
            weights = [math.exp(score - highest) for score in scores]
            for weight, value in zip(weights, values):
                out[head] += weight / sum(weights) * value
        return out
"""

RIGHT = ("attend", {"einsum": ATTEND, "loops": ATTEND_BY_LOOP})
WRONG = {
    "ignores the table": (
        "[block_table]",
        "[:len(block_table)]",
        "follows_the_table",
        "the context lies in blocks [2]",
    ),
    "sorts the table": (
        "[block_table]",
        "[sorted(block_table)]",
        "nothing_beyond_the_context",
        "others hold somebody's leftovers",
    ),
    "reads leftovers": (
        "[:num_context_tokens]",
        "",
        "nothing_beyond_the_context",
        "2 slots, of which 1 hold the context",
    ),
    "one token short": (
        "[:num_context_tokens]",
        "[:max(1, num_context_tokens - 1)]",
        "follows_the_table",
        "expected, got",
    ),
    "no softmax": (
        "torch.softmax(scores, dim=1)",
        "torch.ones_like(scores) / num_context_tokens",
        "weighs_by_score",
        "weigh e : 1",
    ),
    "softmax over heads": (
        "torch.softmax(scores, dim=1)",
        "torch.softmax(scores, dim=0)",
        "follows_the_table",
        "expected, got",
    ),
    "no scale": (" / query.shape[1] ** 0.5", "", "scales", "the score 4 becomes 4 / 2"),
    "divides by head_dim": ("** 0.5", "** 1", "scales", "the score 4 becomes 4 / 2"),
    "heads far apart share": (
        "repeat_interleave(group, dim=1)",
        "repeat(1, group, 1)",
        "groups_of_heads",
        "with 4 heads over 2 KV heads",
    ),
    "overflows": (
        "torch.softmax(scores, dim=1)",
        "scores.exp() / scores.exp().sum(1, keepdim=True)",
        "large_scores",
        "not finite",
    ),
    "changes the cache": (
        "keys = key_cache[block_table]",
        "key_cache[0] = 0; keys = key_cache[block_table]",
        "shape",
        "one of them was changed",
    ),
    "a window of 8": (
        "[:num_context_tokens]",
        "[:min(8, num_context_tokens)]",
        "as_dense",
        "compared with dense attention",
    ),
    "shape turned": (
        "ht,thd->hd",
        "ht,thd->dh",
        "shape",
        "a tensor of shape [2, 3] is wanted, not shape [3, 2]",
    ),
}
