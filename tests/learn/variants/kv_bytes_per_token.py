"""Variants of `kv_bytes_per_token`; see `variants` for their form."""

ESTIMATE = """
    def estimate(config, bytes_per_value):
        values = 2 * config.num_hidden_layers * config.num_kv_heads * config.head_dim
        return values * bytes_per_value
"""

ESTIMATE_BY_PARTS = """
    def estimate(config, bytes_per_value):
        one_vector = config.head_dim * bytes_per_value
        total = 0
        for layer in range(config.num_hidden_layers):
            for head in range(config.num_kv_heads):
                total += one_vector  # key
                total += one_vector  # value
        return total
"""

RIGHT = ("estimate", {"formula": ESTIMATE, "loops": ESTIMATE_BY_PARTS})
WRONG = {
    "only keys": ("2 * config", "config", "a_key_and_a_value", "8 bytes expected, not 4"),
    "bits": ("* bytes_per_value", "* bytes_per_value * 8", "a_key_and_a_value", "not 64"),
    "a fraction": (
        "values * bytes_per_value",
        "values * bytes_per_value / 1024",
        "returns_a_whole_number",
        "a whole number of bytes",
    ),
    "one layer": ("config.num_hidden_layers", "1", "every_layer", "2 layers keep keys"),
    "always float16": ("* bytes_per_value", "* 2", "each_value_has_bytes", "int8 takes 1"),
    "query heads": (
        "config.num_kv_heads",
        "config.num_attention_heads",
        "kv_heads_only",
        "2 query heads share 1 KV heads",
    ),
    "hidden size": (
        "config.num_kv_heads * config.head_dim",
        "config.hidden_size",
        "kv_heads_only",
        "only KV heads are stored",
    ),
    "derived head size": (
        "config.head_dim",
        "(config.hidden_size // config.num_attention_heads)",
        "head_dim_from_the_config",
        "head_dim is 4 here",
    ),
    "keeps 16 bits": (
        "values * bytes_per_value",
        "values * bytes_per_value % 65536",
        "real_models",
        "Llama-2-7B",
    ),
    "forgets to return": (
        "return values",
        "values",
        "returns_a_whole_number",
        "this is None",
    ),
}
