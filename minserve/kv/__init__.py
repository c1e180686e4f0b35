"""KV-cache memory: how much a token costs, who owns which block, and what can be reused."""
