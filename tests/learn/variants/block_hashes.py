"""Variants of `block_hashes`; see `variants` for their form."""

HASHES = """
    from hashlib import blake2b

    def block_hashes(token_ids, block_size, root):
        hashes = []
        parent = root
        for start in range(0, len(token_ids) - block_size + 1, block_size):
            tokens = token_ids[start : start + block_size]
            content = b"".join(token.to_bytes(8, "little") for token in tokens)
            parent = blake2b(parent + content, digest_size=16).digest()
            hashes.append(parent)
        return hashes
"""

HASHES_BY_JSON = """
    import json
    from hashlib import sha256
    from itertools import accumulate

    def block_hashes(token_ids, block_size, root):
        count = len(token_ids) // block_size
        blocks = [token_ids[n * block_size : (n + 1) * block_size] for n in range(count)]

        def key(parent, block):
            return sha256(json.dumps([parent.hex(), list(block)]).encode()).digest()

        return list(accumulate(blocks, key, initial=root))[1:]
"""

RIGHT = ("block_hashes", {"as in the lesson": HASHES, "json": HASHES_BY_JSON})
WRONG = {
    "half a block": (
        "len(token_ids) - block_size + 1",
        "len(token_ids)",
        "full_blocks_only",
        "what is not full has none",
    ),
    "forgets the last": (
        "len(token_ids) - block_size + 1",
        "len(token_ids) - block_size",
        "full_blocks_only",
        "there are as many keys",
    ),
    "text": (
        "hashes.append(parent)",
        "hashes.append(parent.hex())",
        "full_blocks_only",
        "a key is bytes",
    ),
    "short": ("digest_size=16", "digest_size=8", "keys_are_long", "8 bytes"),
    "only where it stands": (
        "parent + content",
        "parent + bytes(len(content))",
        "other_tokens_other_key",
        "other tokens have other keys",
    ),
    "only the last token": (
        "for token in tokens)",
        "for token in tokens[-1:])",
        "other_tokens_other_key",
        "other tokens have other keys",
    ),
    "sorted": ("for token in tokens)", "for token in sorted(tokens))", "order_counts", "order"),
    "digits in a row": (
        'token.to_bytes(8, "little")',
        "str(token).encode()",
        "tokens_are_kept_apart",
        "these look the same",
    ),
    "one byte a token": (
        'token.to_bytes(8, "little")',
        "bytes([token % 256])",
        "whole_token_ids",
        "257 needs",
    ),
    "two bytes a token": (
        'token.to_bytes(8, "little")',
        '(token % 65536).to_bytes(2, "little")',
        "whole_token_ids",
        "65537 needs",
    ),
    "Python's hash": (
        "blake2b(parent + content, digest_size=16).digest()",
        '(hash((parent, tuple(tokens))) % 2**64).to_bytes(16, "little")',
        "not_by_hash",
        "PYTHONHASHSEED",
    ),
    "no chain": (
        "parent = blake2b(parent + content, digest_size=16).digest()\n"
        "            hashes.append(parent)",
        "hashes.append(blake2b(root + content, digest_size=16).digest())",
        "knows_what_came_before",
        "attention has mixed those in",
    ),
    "no root": ("parent = root\n", 'parent = b""\n', "the_root_is_the_first_parent", "model"),
    "half the parent": (
        "blake2b(parent + content",
        "blake2b(parent[:8] + content",
        "the_root_is_the_first_parent",
        "the roots differ",
    ),
    "all of the text so far": (
        "blake2b(parent + content",
        'blake2b(root + b"".join(t.to_bytes(8, "little") for t in token_ids[:start]) + content',
        "goes_on_from_any_block",
        "the engine goes on from the last key",
    ),
    "counts blocks": (
        "blake2b(parent + content",
        'blake2b(start.to_bytes(8, "little") + parent + content',
        "goes_on_from_any_block",
        "the engine goes on from the last key",
    ),
}
