"""Guesses before runs, and choices that explain themselves: nothing here is graded."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TypeGuard


def predicted(guess: float | None, measured: float, what: str, close: float = 0.15) -> None:
    """Set a guess beside what was measured. `close` is the share within which it counts as near."""
    if guess is None or not _is_number(guess):
        print(f"Measured: {measured:,g} {what}. (No guess yet: write one down before you run.)")
        return
    off = abs(guess - measured) / abs(measured) if measured else abs(guess)
    verdict = "spot on" if off < 0.01 else "close" if off <= close else "worth a second thought"
    print(f"You said {guess:,g}, measured: {measured:,g} {what}. That is {verdict}.")


def solved(name: str, answer: float | None) -> None:
    """Say whether a worked figure is right, without giving it away. `name` is one of `SUMS`."""
    right, hint = SUMS[name]
    if not _is_number(answer):
        print("Not yet: put your figure in, a plain number, and run again.")
    elif math.isclose(answer, right, rel_tol=1e-6):  # 0.9 / (1 - 0.9) is not quite 9
        print(f"{right:,g}: right.")
    else:
        print(f"{answer:,g} is not it. {hint}")


def choose(quiz: str, answer: str | None) -> None:
    """Say what a choice gets right or wrong. `quiz` is one of `QUIZZES`."""
    right, because = QUIZZES[quiz]
    options = ", ".join(because)
    if answer is None:
        print(f"Not yet: choose one of {options}, and run again.")
    elif (letter := str(answer).strip().lower()) not in because:
        print(f"{answer!r} is none of {options}.")
    else:
        print(f"{'Yes' if letter == right else 'Not quite'}: {because[letter]}")


def _is_number(value: object) -> TypeGuard[float]:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


# Each: the right figure, and what to look at again.
SUMS: dict[str, tuple[float, str]] = {
    "the largest": (1, "Indices begin at 0."),
    "the median": (1, "Sort them, and take the one in the middle."),
    "rows of a product": (5, "[m, k] times [k, n] is [m, n]."),
    "fits, decimal": (62, "Work out the bytes of one request, then divide and round down."),
    "fits, binary": (65, "KiB for the token, GiB for the memory; then round down."),
    "reused tokens": (96, "Only whole blocks, and only those before the token."),
    "hits to look at": (299, "0.99 ** n < 0.05, so n > log(0.05) / log(0.99)."),
    "samples of a p95": (59, "n > log(0.05) / log(0.95), rounded up."),
    "the mean wait": (0.45, "0.9 / 0.1 times 0.1 s, times one half."),
}

# Each: the right choice, and of every choice what it gets right or wrong.
QUIZZES: dict[str, tuple[str, Mapping[str, str]]] = {
    "one more writes": (
        "b",
        {
            "a": "it would, if the arithmetic took the time. Decode waits for the weights to come "
            "out of memory, and one reading serves both.",
            "b": "the weights are read once for both, and reading them is most of the time. The "
            "second person adds arithmetic, of which there is plenty, and its own KV cache.",
            "c": "no: each person still needs every weight once for every token.",
        },
    ),
    "the average fell": (
        "c",
        {
            "a": "the average counts every person alike, and there are seven short questions to "
            "one contract: it cannot see what happened to the eighth.",
            "b": "the work is the same, and the machine is no faster: all done at the same time. "
            "Only the order has changed.",
            "c": "most gained, and those with contracts paid for it. The average counts heads; so "
            "look at the tail, and at each kind of request by itself.",
        },
    ),
    "a larger group": (
        "better",
        {
            "better": "fewer groups stand in line. But look how many places are empty: few "
            "requests share a step, because each group shrinks until its longest answer is done.",
            "worse": "a group of 4 makes 30 groups, one behind the other, each as slow as its "
            "longest answer. What a larger group makes worse is the gap between tokens, a little.",
        },
    ),
    "guessing pays": (
        "alone",
        {
            "always": "not in the last row: a step that checks many wrong guesses takes longer, "
            "and brings little more.",
            "crowd": "the other way round: in a crowd the arithmetic is in use already, and every "
            "guess competes with somebody's token.",
            "alone": "few people leave arithmetic idle, and right guesses save whole steps. In a "
            "crowd guesses must be right often, or rest.",
        },
    ),
    "the hit rate": (
        "document",
        {
            "greeting": "nearly all of its requests hit, with 32 tokens of their thousand.",
            "document": "three in ten of its requests hit, each with nearly 3,000 tokens.",
        },
    ),
    "where the time goes": (
        "last",
        {
            "first": "then every prompt differs from its first block on, and nothing is reused.",
            "middle": "what stands before it is reused, what stands behind it is not: between "
            "system prompt and tools it costs you the tools.",
            "last": "it changes with each request, so nothing that could be shared may follow it.",
        },
    ),
    "against the clock": (
        "salt",
        {
            "delay": "noise averages out: the attacker asks about more texts, or uses several "
            "keys. And everybody waits longer, always.",
            "salt": "there is no hit to see any more. Nobody waits longer, and within its scope "
            "the cache works as before.",
            "limit": "a rate limit makes it slower, not impossible: one probe of one likely "
            "sentence is enough.",
        },
    ),
    "the mean of p99s": (
        "higher",
        {
            "higher": "the slow requests came in the busy minutes, as most requests did. In the "
            "mean a minute of 173 requests weighs as much as one of 555.",
            "lower": "it would be, if the quiet minutes had most of the requests. They have few, "
            "and weigh in the mean as much as the busy ones.",
        },
    ),
    "the cheap route": (
        "chat",
        {
            "account": "no: the evidence of such a question stands beside it, and the cheap route "
            "has it too.",
            "policy": "one question fails there, but on both routes.",
            "chat": "the cheap route does not see what was said before.",
        },
    ),
    "the dashboard": (
        "raw",
        {
            "average": "each minute then counts alike: a quiet one with 173 requests as much as a "
            "busy one with 555, in which nearly everybody who waited was.",
            "max": "that is the worst minute, not the p99 of all: honest as an alarm, wrong as a "
            "figure of the service.",
            "raw": "keep the samples, or histograms with fixed buckets, which can be added up. A "
            "percentile that has been computed cannot be undone.",
        },
    ),
    "the queue grows": (
        "c",
        {
            "a": "a longer queue makes nobody faster: it turns a refusal now into a timeout later.",
            "b": "they all come back together, and find the same queue.",
            "c": "whom it takes it serves in time, and the others know at once, and when it is "
            "worth coming back.",
        },
    ),
    "scale on": (
        "waits",
        {
            "utilisation": "an engine computes as soon as it has one request: it reads 100 % for "
            "a comfortable load and for one that drowns.",
            "waits": "what waits and for how long says what is missing, active sequences and KV "
            "blocks say how much room is left before anything waits.",
            "requests": "a request is 10 tokens or 10,000. Count what the machine works on.",
        },
    ),
    "not in the key": (
        "request",
        {
            "roles": "an admin may be told more: without roles, the first to ask decides what all "
            "read.",
            "history": 'then "And the support hours?" has one answer for all chats.',
            "request": "every request has another id, and the answer does not depend on it: with "
            "it in the key nothing is ever found again.",
            "policy": "then answers of the old policy are served under the new one, until they "
            "expire.",
        },
    ),
    "five are left": (
        "table",
        {
            "hash": "nothing collided: two people who may share an answer have one key, as they "
            "should. The question is who may.",
            "ttl": "that makes leaks rarer and not impossible: the second to ask within the minute "
            "still reads the first one's balance.",
            "table": "the scope of every class was public, so your key left out who asks, as it "
            "was told. Whose business an answer is has to be decided for each class.",
        },
    ),
    "who leads hangs up": (
        "next",
        {
            "fail": "that would make 199 people depend on one stranger's connection.",
            "next": "whoever has waited longest takes over and asks the model: two calls, and "
            "everybody else is answered.",
            "all": "then the crowd comes down on the model after all, only later.",
        },
    ),
    "on is near off": (
        "guards",
        {
            "higher": "look at the curve: the paraphrases go first, and the wrong share grows.",
            "model": "a better one places paraphrases nearer. On and off stay near as well: they "
            "are about the same thing.",
            "guards": "a difference that a word makes is seen by looking at the words. Nearness "
            "is there to find candidates.",
        },
    ),
    "the user has gone": (
        "b",
        {
            "a": "the engine does not notice by itself: it has no connection to watch.",
            "b": "the answer is written to its end for nobody; its blocks stay used as long.",
            "c": "blocks have no time limit: only the end of the request gives them back.",
        },
    ),
    "blocks run out": (
        "refuse",
        {
            "reserve": "it keeps about half of the memory free for answers that never get "
            "that long, and the queue grows.",
            "preempt": "it fills the memory, but lets everybody in: late-comers wait behind "
            "work that is done twice.",
            "refuse": "whom it accepts is served soon, and the others know at once. "
            "They count as not served here.",
        },
    ),
}
