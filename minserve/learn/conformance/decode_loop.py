"""The rules of `decode_loop(forward, prompt_token_ids, max_tokens, eos_token_ids)`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from minserve.learn.conformance import BrokenRule, Ladder, Rule, Suite, returned, showing

Loop = Callable[..., list[int]]
CHOOSE, STOP = "choose", "stop"
VOCABULARY = 8


class Model:
    """A model that writes `script`, whatever it reads, and keeps what it was given."""

    def __init__(self, script: Sequence[int], most_calls: int = 50) -> None:
        self.script = list(script)
        self.most_calls = most_calls
        self.calls: list[list[int]] = []
        self.lines: list[str] = []

    def forward(self, token_ids: Any) -> np.ndarray:
        """Logits of the next token; the call is written down."""
        number = len(self.calls)
        given = [int(token) for token in token_ids]
        self.calls.append(given)
        logits = np.linspace(-2.0, -1.0, VOCABULARY)
        token = self.script[number % len(self.script)]
        logits[token] = 1.0
        self.lines.append(f"forward({given})   # the largest logit is that of token {token}")
        if number >= self.most_calls:
            self.fail("it goes on and on: nothing ends the loop")
        return logits

    def run(
        self,
        loop: Loop,
        prompt: Sequence[int] = (5, 6),
        most: int = 3,
        eos: frozenset[int] = frozenset(),
    ) -> list[int]:
        """The candidate's tokens, checked to be a list of plain integers."""
        call = f"decode_loop(forward, {list(prompt)}, max_tokens={most}, eos_token_ids={set(eos)})"
        self.lines.append(call.replace("set()", "{}"))
        with showing(self.lines):
            tokens = loop(self.forward, list(prompt), most, eos)
        self.lines.append(f"-> {tokens!r:.80}")
        if not isinstance(tokens, list):
            self.fail(f"a list of token ids is wanted; this is {returned(tokens)}")
        if not all(isinstance(token, (int, np.integer)) for token in tokens):
            self.fail(f"token ids are whole numbers; this is {tokens!r:.60}")
        return [int(token) for token in tokens]

    def fail(self, what: str) -> None:
        """The rule is broken."""
        raise BrokenRule(what, self.lines)


def _the_largest_logit(loop: Loop) -> None:
    for token in (0, 3, 7):
        model = Model([token])
        tokens = model.run(loop, most=1)
        if tokens != [token]:
            model.fail(f"token {token} has the largest logit, so [{token}] is expected")


def _reads_the_prompt_first(loop: Loop) -> None:
    for prompt in ((5,), (5, 6, 7)):
        model = Model([1])
        model.run(loop, prompt, most=1)
        if model.calls[:1] != [list(prompt)]:
            model.fail(f"the first call reads the whole prompt {list(prompt)}, and no less")


def _then_one_token_at_a_time(loop: Loop) -> None:
    model = Model([1, 2, 3])
    model.run(loop, most=3)
    if model.calls[1:] != [[1], [2]]:
        model.fail(
            f"the model remembers what it has read (the KV cache): after the prompt it needs only "
            f"the newest token, so [1] and then [2], not {model.calls[1:]}"
        )


def _returns_what_it_wrote(loop: Loop) -> None:
    model = Model([4, 2, 1])
    tokens = model.run(loop, most=3)
    if tokens != [4, 2, 1]:
        model.fail("the tokens that were written are 4, 2, 1, in this order, without the prompt")


def _stops_at_max_tokens(loop: Loop) -> None:
    for prompt, most in (((5,), 1), ((5, 6), 2), ((5, 6), 5)):
        model = Model([1, 2])
        tokens = model.run(loop, prompt, most)
        if len(tokens) != most:
            model.fail(f"max_tokens is {most}, and {len(tokens)} were written")


def _stops_at_the_end_token(loop: Loop) -> None:
    for script, eos in (([1, 7, 2], {7}), ([7], {7}), ([1, 6, 7], {6, 7})):
        model = Model(script)
        tokens = model.run(loop, most=6, eos=frozenset(eos))
        end = next(i for i, token in enumerate(script) if token in eos)
        if len(tokens) > end + 1:
            model.fail(f"token {script[end]} ends the text, and the loop went on")
        if tokens != script[: end + 1]:
            model.fail(f"{script[: end + 1]} is expected: the end token is the last of the output")


def _computes_nothing_in_vain(loop: Loop) -> None:
    for script, most, eos in (([1, 2], 2, frozenset()), ([1, 7], 5, frozenset({7}))):
        model = Model(script)
        tokens = model.run(loop, most=most, eos=eos)
        if len(model.calls) != len(tokens):
            model.fail(
                f"{len(tokens)} tokens were written with {len(model.calls)} calls: "
                f"the last one's own logits are never needed"
            )


RULES = (
    Rule(
        "the_largest_logit",
        CHOOSE,
        "Greedy decoding takes the token with the largest logit.",
        "logits.argmax()",
        _the_largest_logit,
    ),
    Rule(
        "reads_the_prompt_first",
        CHOOSE,
        "The prompt is read in one call: that is the prefill.",
        "forward(prompt_token_ids)",
        _reads_the_prompt_first,
    ),
    Rule(
        "then_one_token_at_a_time",
        CHOOSE,
        "Each later call reads only the newest token: that is decode.",
        "forward([token])",
        _then_one_token_at_a_time,
    ),
    Rule(
        "returns_what_it_wrote",
        CHOOSE,
        "The result is the output, in order, without the prompt.",
        "Collect each chosen token in a list of its own.",
        _returns_what_it_wrote,
    ),
    Rule(
        "stops_at_max_tokens",
        STOP,
        "At most max_tokens are written.",
        "Count the output, not the calls or the prompt.",
        _stops_at_max_tokens,
    ),
    Rule(
        "stops_at_the_end_token",
        STOP,
        "A token in eos_token_ids ends the text, and is the last of the output.",
        "Append first, then look whether it ends the text.",
        _stops_at_the_end_token,
    ),
    Rule(
        "computes_nothing_in_vain",
        STOP,
        "N tokens take N calls.",
        "Stop before the next forward, not after it.",
        _computes_nothing_in_vain,
    ),
)

SUITE = Suite(
    "decode_loop",
    (CHOOSE, STOP),
    RULES,
    {
        CHOOSE: Ladder(
            drawing="""\
  forward([5, 6, 7])  ->  logits  ->  largest: 1        prefill: all of the prompt at once
  forward([1])        ->  logits  ->  largest: 4        decode: one token a call
  forward([4])        ->  logits  ->  largest: 2        output: [1, 4, 2]""",
            pseudocode="""\
read the prompt
repeat:  take the token with the largest logit, note it, read it""",
            near_miss="""\
- logits = forward(prompt_token_ids + output)
+ logits = forward([output[-1]])""",
        ),
        STOP: Ladder(
            drawing="""\
max_tokens 3:   prompt -> 1   [1] -> 4   [4] -> 2   stop: 3 tokens, 3 calls
end token 4:    prompt -> 1   [1] -> 4   stop: [1, 4]""",
            pseudocode="""\
repeat:
    choose a token, note it
    enough tokens, or an end token?  done
    read it""",
            near_miss="""\
  output.append(token)
- logits = forward([token])
  if token in eos_token_ids or len(output) == max_tokens:
      return output
+ logits = forward([token])""",
        ),
    },
)
