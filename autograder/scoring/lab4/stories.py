"""Lab 4's scenarios: each plays one story with drawn values and counts what its cell scores."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

from autograder.scoring.lab4.world import FIXED_US, TOKEN_US, Request, World
from autograder.scoring.stories import Story

NAMES = ("amity", "borealis", "corvid", "dynamo", "ember", "fathom", "garnet", "hinge", "isobar")
NOT_NAMED: dict[str, Any] = {"None": None, "an empty text": "", "the text 'None'": "None"}


def ask(tokens: Sequence[int], salt: Any, adapter: Any = None, body: Any = None) -> Request:
    return {"tokens": list(tokens), "salt": salt, "adapter": adapter, "body": body or {}}


def prompt(world: World, rng: random.Random, num_blocks: int, extra: int = 1) -> list[int]:
    """Drawn tokens: that many full blocks and `extra` tokens more."""
    return [rng.randrange(1000, 50_000) for _ in range(num_blocks * world.size + extra)]


def salts(rng: random.Random, count: int) -> list[str]:
    return [f"{name}-{rng.getrandbits(32):08x}" for name in rng.sample(NAMES, count)]


# -- who shares


def strangers(world: World, rng: random.Random) -> None:
    """Colleagues hit, strangers do not, and everybody finds what is their own."""
    mine, theirs = salts(rng, 2)
    tokens = prompt(world, rng, rng.randint(2, 4))
    world.commit(ask(tokens, mine))
    world.look(ask(tokens, mine), when="asked again under the same salt")
    longer = [*tokens[: 2 * world.size], *prompt(world, rng, 1)]
    world.look(ask(longer, mine), when="two blocks are the same, under the same salt")
    others = {"another salt": theirs, "a part of the salt": mine[:-1], "a longer salt": mine + "0"}
    for words, other in (others | NOT_NAMED).items():
        for asked in (tokens, longer):
            world.look(ask(asked, other), when=f"asked with {words}")
    world.commit(ask(tokens, theirs))
    for salt in (mine, theirs):
        world.look(ask(tokens, salt), when="both have computed the same tokens")


def nobody_has_a_salt(world: World, rng: random.Random) -> None:
    (salt,) = salts(rng, 1)
    tokens = prompt(world, rng, 2)
    world.commit(ask(tokens, None))
    world.look(ask(tokens, None), when="no salt, and none")
    for words, other in (NOT_NAMED | {"a salt": salt}).items():
        if other is not None:
            world.look(ask(tokens, other), when=f"computed without a salt, asked with {words}")


def runs_together(world: World, rng: random.Random) -> None:
    """The end of a salt is not the beginning of a token."""
    (salt,) = salts(rng, 1)
    digit, rest = rng.randint(1, 9), prompt(world, rng, 2)[1:]
    first = rng.randrange(10, 99)
    world.commit(ask([first, *rest], f"{salt}{digit}"))
    world.look(ask([int(f"{digit}{first}"), *rest], salt), when="a digit of the salt as a token's")


def claims(world: World, rng: random.Random) -> None:
    """What the client writes has no say, neither for nor against."""
    mine, theirs = salts(rng, 2)
    tokens = prompt(world, rng, 2)
    world.commit(ask(tokens, mine, body={"cache_salt": mine}))
    for names in (("cache_salt",), ("cache_salt", "salt", "tenant", "user")):
        body = dict.fromkeys(names, mine)
        world.look(ask(tokens, theirs, body=body), "body", f"the body claims {', '.join(names)}")
        world.look(ask(tokens, None, body=body), "body", f"the body claims {', '.join(names)}")
    for said in ("other", 7, None, ["x"]):
        world.look(
            ask(tokens, mine, body={"cache_salt": said}), when="the body says something else"
        )


# -- what is the same


def one_differs(world: World, rng: random.Random) -> None:
    """One token differs, anywhere: the match ends before its block."""
    (salt,) = salts(rng, 1)
    tokens = prompt(world, rng, 4)
    world.commit(ask(tokens, salt))
    world.look(ask(tokens, salt))
    for at in rng.sample(range(len(tokens)), 5):
        for value in (tokens[at] + 1, tokens[at] + 256, tokens[at] + 2**16, tokens[at] + 2**32):
            changed = [*tokens[:at], value, *tokens[at + 1 :]]
            world.look(ask(changed, salt), when="one token differs")


def other_places(world: World, rng: random.Random) -> None:
    """Known blocks in another order, at another place, or behind other tokens."""
    (salt,) = salts(rng, 1)
    size = world.size
    one, two = prompt(world, rng, 3), prompt(world, rng, 3)
    for tokens in (one, two):
        world.commit(ask(tokens, salt))
    new = prompt(world, rng, 1, 0)
    for tokens, when in (
        (one[size:], "a prompt that lacks the first block"),
        ([*one[size : 2 * size], *one[:size], 5], "two blocks exchanged"),
        ([*two[:size], *one[size:]], "the rest of another prompt"),
        ([*new, *one[size:]], "behind a block that nobody knows"),
        (one[1:], "a prompt that lacks the first token"),
        (sorted(one[:size]) + one[size:], "the tokens of a block in another order"),
    ):
        world.look(ask(tokens, salt), when=when)


def numbers_merge(world: World, rng: random.Random) -> None:
    """1, 23 is not 12, 3."""
    (salt,) = salts(rng, 1)
    a, b, c = (rng.randint(1, 9) for _ in range(3))
    rest = prompt(world, rng, 2)[2:]
    world.commit(ask([a, int(f"{b}{c}"), *rest], salt))
    world.look(ask([int(f"{a}{b}"), c, *rest], salt), when="digits moved to the next token")


def adapters(world: World, rng: random.Random) -> None:
    (salt,) = salts(rng, 1)
    one, two = rng.sample(NAMES, 2)
    for known in (one, None):
        tokens = prompt(world, rng, 2)
        world.commit(ask(tokens, salt, known))
        world.look(ask(tokens, salt, known), when="the same adapter")
        for words, other in (NOT_NAMED | {"an adapter": one, "another": two}).items():
            if other != known:
                had = "no adapter" if known is None else "an adapter"
                world.look(
                    ask(tokens, salt, other), when=f"computed with {had}, asked with {words}"
                )


def kinds_mix(world: World, rng: random.Random) -> None:
    """An adapter is no salt, whatever their names and however they are joined."""
    one, two, three = rng.sample(NAMES, 3)
    for salt, adapter in ((one, two), (None, one), (one, None)):
        s, a = salt or "", adapter or ""
        others: set[tuple[Any, Any]] = {(adapter, salt), (s, a)}
        for none in (None, ""):
            others |= {(salt, none), (none, adapter), (s + a, none), (none, s + a)}
            others |= {(a + s, none), (none, a + s)}
        mixed(world, rng, (salt, adapter), sorted(others - {(salt, adapter)}, key=repr))
    for mark in ("|", ":", "/", ",", "-", " "):
        mixed(world, rng, (f"{one}{mark}{two}", three), [(one, f"{two}{mark}{three}")])
        mixed(world, rng, (one, f"{two}{mark}{three}"), [(f"{two}{mark}{three}", one)])


def mixed(world: World, rng: random.Random, who: tuple[Any, Any], others: list[Any]) -> None:
    """One prompt, computed for a salt and an adapter, and asked for with others."""
    tokens = prompt(world, rng, 1)
    world.commit(ask(tokens, *who))
    for other in others:
        world.look(ask(tokens, *other), "mixed", "their letters, joined or exchanged, are the same")


def digests_collide(world: World, rng: random.Random) -> None:
    """All texts, or one in two or three, have one digest. A miss is fine, a wrong block is not."""
    mine, theirs = salts(rng, 2)
    world.num_digests = rng.choice((1, 2, 3))
    base = prompt(world, rng, 3)
    asked = [ask(base, mine), ask(base, theirs), ask(base, mine, "legal")]
    asked += [ask(prompt(world, rng, 3), mine) for _ in range(3)]
    asked += [ask([*prompt(world, rng, 1, 0), *base[world.size :]], mine)]
    asked += [ask([*(3 * base[: world.size]), 7], mine)]  # one block again and again
    for request in asked:
        world.commit(request)
        for other in asked:
            for finding in found_in(world, other):
                if finding != "no_reuse":
                    world.find("collision")


def found_in(world: World, request: Request) -> list[str]:
    """The kinds that a look finds, taken back."""
    before = len(world.found)
    world.look(request)
    kinds = [finding.kind for finding in world.found[before:]]
    del world.found[before:]
    return kinds


# -- what is there


def chunks(world: World, rng: random.Random) -> None:
    """A long prompt is read in pieces, and somebody else asks in between."""
    (salt,) = salts(rng, 1)
    tokens = prompt(world, rng, rng.randint(3, 5), rng.randint(0, world.size - 1))
    request, done = ask(tokens, salt), 0
    blocks = world.blocks_for(request)
    other = ask([*tokens, 7], salt)
    world.look(other, when="nothing is computed yet")
    while done < len(tokens):
        done = min(len(tokens), done + rng.randint(1, 2 * world.size))
        world.commit(request, blocks, done)
        world.look(other, when="a part of the prompt is computed")
        for length in (done, done - 1, done + 1):
            shorter = ask(tokens[: max(1, length)], salt)
            world.look(shorter, when="a prompt about as long as what is computed")


def whole_prompt(world: World, rng: random.Random) -> None:
    """Computed to its last token, full to its last block, and asked for again."""
    (salt,) = salts(rng, 1)
    tokens = prompt(world, rng, rng.randint(2, 4), 0)
    world.commit(ask(tokens, salt))
    world.look(ask(tokens, salt), when="the whole prompt is known")
    world.look(ask([*tokens, 7], salt), when="all but one token is known")
    half = prompt(world, rng, 1, rng.randint(1, world.size - 1))
    world.commit(ask(half, salt))
    for extra in ([], [7], prompt(world, rng, 1)):
        world.look(ask([*half, *extra], salt), when="its last block is not full")


def blocks_leave(world: World, rng: random.Random) -> None:
    """The last blocks are evicted and hold something else; then the prefix is computed anew."""
    (salt,) = salts(rng, 1)
    tokens = prompt(world, rng, 4)
    blocks = world.commit(ask(tokens, salt))
    num_gone = rng.randint(1, 3)
    gone = blocks[4 - num_gone : 4][::-1]
    for block in gone:
        world.evict(block)
    world.look(ask(tokens, salt), when="its last blocks were evicted")
    other = prompt(world, rng, num_gone, 0)
    world.commit(ask(other, salt), gone)
    world.look(ask(tokens, salt), when="its last blocks hold something else now")
    world.look(ask([*other, 7], salt), when="computed into blocks that were evicted")
    anew = [*blocks[: 4 - num_gone], *world.blocks_for(ask(other, salt)), blocks[4]]
    world.commit(ask(tokens, salt), anew)
    world.look(ask(tokens, salt), when="computed again after it was evicted")


def calm(world: World, rng: random.Random) -> None:
    """Looking changes nothing, saying it twice neither, and unknown blocks are fine."""
    (salt,) = salts(rng, 1)
    request = ask(prompt(world, rng, 3), salt)
    blocks = world.commit(request)
    for _ in range(2):
        world.commit(request, blocks)
        world.call("evict", 10**6)
        told = world.call("match", request)
        if type(told) is not list or told[:3] != blocks[:3]:
            world.find("service")


# -- what the clock tells


def guesses(world: World, rng: random.Random) -> None:
    """Whole prompts are guessed, half of them right."""
    mine, theirs = salts(rng, 2)
    for _ in range(4):
        sent, unsent = prompt(world, rng, 3), prompt(world, rng, 3)
        world.commit(ask(sent, mine))
        times_us = [world.ttft_us(ask(tokens, theirs)) for tokens in (sent, unsent)]
        if times_us[0] < times_us[1]:
            world.find("channel", "whole prompts were guessed")


def spelled_out(world: World, rng: random.Random) -> None:
    """A secret behind a public beginning, guessed one block at a time, with claims in the body."""
    mine, theirs = salts(rng, 2)
    public, secrets = prompt(world, rng, 2, 0), [prompt(world, rng, 1, 0) for _ in range(6)]
    world.commit(ask([*public, *rng.choice(secrets), 7], mine, body={"cache_salt": "shared"}))
    world.commit(ask([*public, 7], theirs, body={"cache_salt": "shared"}))
    times_us = set()
    for secret in secrets:
        body = {"cache_salt": rng.choice((mine, "shared")), "tenant": mine.partition("-")[0]}
        times_us.add(world.ttft_us(ask([*public, *secret, 7], theirs, body=body)))
    if len(times_us) > 1:
        world.find("channel", "a secret behind a public beginning: one of six guesses stood out")


def colleagues(world: World, rng: random.Random) -> None:
    (salt,) = salts(rng, 1)
    tokens = prompt(world, rng, rng.randint(2, 5))
    world.commit(ask(tokens, salt))
    due_us = FIXED_US + TOKEN_US * (len(tokens) - world.due(ask(tokens, salt)) * world.size)
    if world.ttft_us(ask(tokens, salt)) > due_us:
        world.find("no_reuse", "a colleague was not served faster")


STORIES: dict[str, tuple[Story, ...]] = {
    "lab4-salt": (
        Story(strangers, ("leak", "no_reuse")),
        Story(nobody_has_a_salt, ("leak", "no_reuse")),
        Story(runs_together, ("leak",)),
        Story(claims, ("body", "no_reuse")),
    ),
    "lab4-exact": (
        Story(one_differs, ("wrong_tokens", "no_reuse")),
        Story(other_places, ("wrong_tokens",)),
        Story(numbers_merge, ("wrong_tokens",)),
        Story(adapters, ("adapter", "no_reuse")),
        Story(kinds_mix, ("mixed",)),
        Story(digests_collide, ("collision",)),
    ),
    "lab4-computed": (
        Story(chunks, ("uncomputed", "nothing_left", "no_reuse")),
        Story(whole_prompt, ("uncomputed", "nothing_left", "no_reuse")),
        Story(blocks_leave, ("evicted", "no_reuse")),
        Story(calm, ("service",), is_gate=True),
    ),
    "lab4-channel": (
        Story(guesses, ("channel",)),
        Story(spelled_out, ("channel",)),
        Story(colleagues, ("no_reuse",)),
    ),
}
