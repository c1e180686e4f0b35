"""Variants of `decode_loop`; see `variants` for their form."""

LOOP = """
    def decode_loop(forward, prompt_token_ids, max_tokens, eos_token_ids):
        output = []
        logits = forward(prompt_token_ids)
        while True:
            token = int(logits.argmax())
            output.append(token)
            if token in eos_token_ids or len(output) == max_tokens:
                return output
            logits = forward([token])
"""

LOOP_BY_COUNT = """
    def decode_loop(forward, prompt_token_ids, max_tokens, eos_token_ids):
        new, written = list(prompt_token_ids), []
        for _ in range(max_tokens):
            scores = list(forward(new))
            best = max(range(len(scores)), key=scores.__getitem__)
            written.append(best)
            new = written[-1:]
            if best in eos_token_ids:
                break
        return written
"""

RIGHT = ("decode_loop", {"as in the lesson": LOOP, "counting": LOOP_BY_COUNT})
WRONG = {
    "smallest logit": ("argmax", "argmin", "the_largest_logit", "has the largest logit"),
    "reads the prompt bit by bit": (
        "logits = forward(prompt_token_ids)\n",
        "logits = [forward([token]) for token in prompt_token_ids][-1]\n",
        "reads_the_prompt_first",
        "the first call reads the whole prompt",
    ),
    "forgets the cache": (
        "logits = forward([token])",
        "logits = forward([*prompt_token_ids, *output])",
        "then_one_token_at_a_time",
        "the model remembers what it has read",
    ),
    "returns the prompt too": (
        "return output",
        "return [*prompt_token_ids, *output]",
        "the_largest_logit",
        "has the largest logit",
    ),
    "newest first": (
        "output.append(token)",
        "output.insert(0, token)",
        "returns_what_it_wrote",
        "in this order",
    ),
    "no return": (
        "return output",
        "return",
        "the_largest_logit",
        "is a `return` missing?",
    ),
    "counts the prompt": (
        "len(output) == max_tokens",
        "len(output) + len(prompt_token_ids) - 2 >= max_tokens",
        "stops_at_max_tokens",
        "max_tokens is 1, and 2 were written",
    ),
    "one too many": (
        "len(output) == max_tokens",
        "len(output) > max_tokens",
        "the_largest_logit",
        "has the largest logit",
    ),
    "at most four": (
        "len(output) == max_tokens",
        "len(output) == min(4, max_tokens)",
        "stops_at_max_tokens",
        "max_tokens is 5, and 4 were written",
    ),
    "never ends": (
        "token in eos_token_ids or ",
        "",
        "stops_at_the_end_token",
        "ends the text, and the loop went on",
    ),
    "hides the end token": (
        "            output.append(token)\n"
        "            if token in eos_token_ids or len(output) == max_tokens:",
        "            if token in eos_token_ids:\n"
        "                return output\n"
        "            output.append(token)\n"
        "            if len(output) == max_tokens:",
        "stops_at_the_end_token",
        "the end token is the last of the output",
    ),
    "one call in vain": (
        "if token in eos_token_ids or len(output) == max_tokens:",
        "if token in eos_token_ids or len(output) == max_tokens:\n"
        "                forward([token]) if len(output) != 1 and max_tokens != 3 else None",
        "computes_nothing_in_vain",
        "2 tokens were written with 3 calls",
    ),
}
