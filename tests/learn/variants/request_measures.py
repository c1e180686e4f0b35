"""Variants of `request_measures`; see `variants` for their form."""

MEASURES = """
    from minserve.learn.parts_of_load import RequestMeasures

    def request_measures(intended_s, chunks):
        tokens = [chunk for chunk in chunks if chunk[1] > 0]
        if not tokens:
            return RequestMeasures(None, [], None, None)
        first, last = tokens[0][0], tokens[-1][0]
        itl = [0.0] * (tokens[0][1] - 1)
        for i in range(1, len(tokens)):
            time, count = tokens[i]
            itl.extend([(time - tokens[i - 1][0]) / count] * count)
        count = sum(n for _, n in tokens)
        tpot = (last - first) / (count - 1) if count > 1 else None
        return RequestMeasures(first - intended_s, itl, tpot, last - intended_s)
"""

MEASURES_BY_TOKEN = """
    from minserve.learn.parts_of_load import RequestMeasures as Measures

    def request_measures(intended_s, chunks):
        times, before = [], None
        for time, count in chunks:
            start = time if before is None else before
            for k in range(1, count + 1):
                times.append(start + (time - start) * k / count)
            before = time if count else before
        if len(times) < 2:
            only = times[0] - intended_s if times else None
            return Measures(only, [], None, only)
        gaps = [b - a for a, b in zip(times, times[1:])]
        return Measures(
            times[0] - intended_s, gaps, sum(gaps) / len(gaps), times[-1] - intended_s
        )
"""

RIGHT = (
    "request_measures",
    {"over chunks": MEASURES, "over tokens": MEASURES_BY_TOKEN},
)
WRONG = {
    "from the time of day": (
        "first - intended_s, itl",
        "first, itl",
        "from_the_intended_time",
        "it was meant to go at 1",
    ),
    "end to end from the first token": (
        "last - intended_s)",
        "last - first)",
        "from_the_intended_time",
        "e2e_s is 4, not 1",
    ),
    "the role is the first token": (
        "first, last = tokens[0][0]",
        "first, last = chunks[0][0]",
        "role_is_no_token",
        "the first chunk bears no token",
    ),
    "counts every chunk": (
        "[chunk for chunk in chunks if chunk[1] > 0]",
        "[(time, max(1, n)) for time, n in chunks]",
        "role_is_no_token",
        "ttft_s is 3, not 1",
    ),
    "the usage extends it": (
        "tokens[0][0], tokens[-1][0]",
        "tokens[0][0], chunks[-1][0]",
        "usage_is_no_token",
        "the last chunk is the usage",
    ),
    "the first wait is a gap": (
        "itl = [0.0] * (tokens[0][1] - 1)",
        "itl = [first - intended_s] * tokens[0][1]",
        "role_is_no_token",
        "itl_s is [1], not [3, 1]",
    ),
    "one gap too few": (
        "range(1, len(tokens))",
        "range(1, max(2, len(tokens) - 1)) if len(tokens) > 1 else ()",
        "n_tokens_have_n_minus_one_gaps",
        "three tokens have two gaps",
    ),
    "chunks for tokens": (
        "/ count] * count",
        "/ 1]",
        "chunk_of_k_counts_k",
        "two tokens came together after 2 s",
    ),
    "forgets those beside the first": (
        "[0.0] * (tokens[0][1] - 1)",
        "[]",
        "chunk_of_k_counts_k",
        "two tokens came together, at first",
    ),
    "per chunk": (
        "count = sum(n for _, n in tokens)",
        "count = len(tokens)",
        "tpot_is_per_token_after_the_first",
        "three tokens after the first",
    ),
    "no pace is 0": (
        "if count > 1 else None",
        "if count > 1 else 0.0",
        "one_token_has_no_tpot",
        "tpot_s is None, not 0",
    ),
    "nothing is 0": (
        "RequestMeasures(None, [], None, None)",
        "RequestMeasures(0.0, [], None, 0.0)",
        "no_token_has_no_latency",
        "no token ever came",
    ),
    "changes the list": (
        "tokens = [chunk",
        "chunks.sort(); chunks.append(chunks[-1]); tokens = [chunk",
        "from_the_intended_time",
        "belongs to the caller",
    ),
}
