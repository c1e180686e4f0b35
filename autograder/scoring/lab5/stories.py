"""Lab 5's scenarios: each plays one story with drawn values and counts what its cell scores."""

from __future__ import annotations

import itertools
import random
from typing import Any

from autograder.scoring.lab5.world import NAMES, World, request
from autograder.scoring.stories import Story

SEPARATORS = ("", " ", "|", ":", ",", "/", "-", "\n", "\0", "\x1f")
TEXTS = ("locale", "model", "policy_version", "question", "tenant")


def other(rng: random.Random, *taken: Any) -> str:
    return rng.choice([name for name in NAMES if name not in taken])


# -- who may have it


def other_tenants(world: World, rng: random.Random) -> None:
    """The same question, and the same in other words, from a colleague and from a stranger."""
    topic = world.topics[0]
    for scope in ("tenant", "user"):
        mine = request(rng, topic.asks[0], scope=scope)
        world.put(mine, f"for {mine['tenant']}")
        world.hit(mine, f"for {mine['tenant']}")
        theirs = {**mine, "tenant": other(rng, mine["tenant"])}
        for question, words in ((topic.asks[0], "same"), (topic.asks[1], "other")):
            when = f"asked in the {words} words, scope {scope!r}"
            world.miss({**theirs, "question": question}, "other_tenant", when=when)


def colleagues(world: World, rng: random.Random) -> None:
    topic = world.topics[1]
    mine = request(rng, topic.asks[0])
    world.put(mine, "for all of us")
    theirs = {**mine, "user": other(rng, mine["user"], mine["tenant"])}
    world.hit(theirs, "for all of us", when="a colleague asked the same")
    reworded = {**theirs, "question": topic.asks[1]}
    world.hit(reworded, "for all of us", when="a colleague asked in other words")


def other_users(world: World, rng: random.Random) -> None:
    topic = world.topics[2]
    mine = request(rng, topic.asks[0], scope="user")
    world.put(mine, "your balance")
    world.hit(mine, "your balance")
    world.hit({**mine, "question": topic.asks[1]}, "your balance", when="asked in other words")
    theirs = {**mine, "user": other(rng, mine["user"], mine["tenant"])}
    for changed, who in ((theirs, "as a personal question"), ({**theirs, "scope": "tenant"}, "")):
        for question, words in ((topic.asks[0], "same"), (topic.asks[1], "other")):
            when = f"a colleague asked in the {words} words {who}".rstrip()
            world.miss({**changed, "question": question}, "other_user", when=when)


def replaced(world: World, rng: random.Random) -> None:
    mine = request(rng, world.topics[0].asks[0])
    world.put(mine, "first")
    world.put(mine, "second", 1)
    if world.call("get", mine, 2) != "second":
        world.find("service")


# -- what it depends on


def fields_alone(world: World, rng: random.Random) -> None:
    """One field differs: another answer is due."""
    mine = request(rng, world.topics[0].asks[0], temperature=0.2, max_tokens=32)
    world.put(mine, "mine")
    world.hit(mine, "mine")
    changes = {"locale": "pt", "model": "micro-1", "temperature": 0.9, "max_tokens": 33}
    changes["question"] = "What is new?"
    for name, value in changes.items():
        world.miss({**mine, name: value}, "field_ignored", when=f"only {name} differed")


def fields_merge(world: World, rng: random.Random) -> None:
    """A piece of text wanders from one field into its neighbour.

    NOTE: all other texts are that piece too, so that fields between the two do not tell them apart.
    """
    names = (*TEXTS, "user")
    for one, two in itertools.permutations(names, 2):
        for separator in SEPARATORS:
            a, b, c = (f"{rng.choice('bcdfg')}{rng.randrange(10**6)}" for _ in range(3))
            mine = request(rng, b, scope="user") | dict.fromkeys(names, b)
            world.put({**mine, one: f"{a}{separator}{b}", two: c}, "mine")
            theirs = {**mine, one: a, two: f"{b}{separator}{c}"}
            world.miss(theirs, "fields_merge", when=f"{one} and {two} around {separator!r}")


def types_merge(world: World, rng: random.Random) -> None:
    """What was not said is no value, and a number is no text."""
    values: tuple[tuple[str, list[Any]], ...] = (
        ("temperature", [None, 0, "0", "None", ""]),
        ("max_tokens", [None, 0, 1, ""]),
        ("locale", [None, "None", "null", "-", ""]),
    )
    for name, different in values:
        for stored in different:
            mine = request(rng, rng.choice(world.topics[0].asks))
            world.put({**mine, name: stored}, "mine")
            for value in different:
                if value is not stored:
                    when = f"{name} {stored!r} and {value!r}"
                    world.miss({**mine, name: value}, "types_merge", when=when)


def texts_merge(world: World, rng: random.Random) -> None:
    """Texts that only a careless normalisation takes for one."""
    n = rng.randint(2, 99)
    letters = rng.choice((("US", "us"), ("IT", "it"), ("Polish", "polish"), ("AIDS", "aids")))
    signs = rng.choice((("²", "2"), ("ﬁ", "fi"), ("½", "1⁄2"), ("Ⅳ", "IV")))
    pieces = (letters, signs, ("    return x", "return x"), ("a  b", "a b"), ("a\nb", "a b"))
    for one, two in pieces:
        mine = request(rng, f"What of {n}{one} in it?")
        theirs = {**mine, "question": f"What of {n}{two} in it?"}
        world.put(mine, "mine")
        world.miss(theirs, "text_merge", when=f"{one!r} and {two!r}")


def forms_agree(world: World, rng: random.Random) -> None:
    """One text, encoded in two ways."""
    one, two = rng.choice((("é", "e\u0301"), ("ü", "u\u0308"), ("ñ", "n\u0303"), ("Å", "A\u030a")))
    mine = request(rng, f"Is Caf{one} {rng.randint(2, 99)} open?")
    world.put(mine, "until six")
    theirs = {**mine, "question": mine["question"].replace(one, two)}
    world.hit(theirs, "until six", when=f"{one!r} in another Unicode form")


# -- how long it is right


def time_passes(world: World, rng: random.Random) -> None:
    """It is asked for again and again, in both ways, until its time is up."""
    topic, end_s = world.topics[0], world.freshness_s
    start_s = rng.randint(0, 1000)
    mine = request(rng, topic.asks[0])
    reworded = {**mine, "question": topic.asks[1]}
    world.put(mine, "mine", start_s)
    for part in (0.2, 0.5, 0.8, 0.95):
        world.hit(mine, "mine", start_s + part * end_s, "well before its time was up")
        world.hit(reworded, "mine", start_s + part * end_s, "well before its time was up")
    late_s = start_s + end_s + rng.choice((0, 1, end_s))
    world.miss(mine, "stale_time", late_s, "asked for often")
    world.miss(reworded, "stale_time", late_s, "asked for in other words")


def policy_moves(world: World, rng: random.Random) -> None:
    topic = world.topics[1]
    mine = request(rng, topic.asks[0])
    world.put(mine, "by the old rules")
    world.hit(mine, "by the old rules")
    newer = {**mine, "policy_version": mine["policy_version"] + "b"}
    world.miss(newer, "stale_policy")
    world.miss({**newer, "question": topic.asks[1]}, "stale_policy", when="in other words")


def sources_change(world: World, rng: random.Random) -> None:
    topic = world.topics[2]
    sources = [f"faq/{number}" for number in rng.sample(range(100), 3)]
    gone = rng.choice(sources)
    mine = request(rng, topic.asks[0])
    world.put(mine, "as in the sources", sources=sources)
    kept = {**mine, "question": "What else?"}
    world.put(kept, "kept", sources=[f"{gone}0", "terms"])
    world.call("invalidate", {"kind": "source_changed", "source": gone})
    world.miss(mine, "stale_source")
    world.miss({**mine, "question": topic.asks[1]}, "stale_source", when="in other words")


def users_leave(world: World, rng: random.Random) -> None:
    topic = world.topics[0]
    mine = request(rng, topic.asks[0])
    personal = {**mine, "question": world.topics[1].asks[0], "scope": "user"}
    world.put(mine, "shared")
    world.put(personal, "personal")
    event = {"kind": "user_deleted", "tenant": mine["tenant"], "user": mine["user"]}
    world.call("invalidate", event)
    colleague = {**mine, "user": other(rng, mine["user"], mine["tenant"])}
    world.miss(colleague, "left_behind", when="it was shared with colleagues")
    world.miss({**colleague, "question": topic.asks[1]}, "left_behind", when="in other words")
    world.miss(personal, "left_behind", when="it was for that user alone")


def unfinished(world: World, rng: random.Random) -> None:
    for reason in ("length", "cancelled", "error"):
        mine = request(rng, rng.choice(world.topics[0].asks))
        world.put(mine, "Well, the fir", finish_reason=reason)
        world.miss(mine, "incomplete", when=f"finish_reason {reason!r}")


def others_stay(world: World, rng: random.Random) -> None:
    """An event removes what it makes wrong, and nothing else."""
    mine = request(rng, "What is new?")
    theirs = {**mine, "question": "What is old?", "tenant": other(rng, mine["tenant"])}
    for answer, text in ((mine, "mine"), (theirs, "theirs")):
        if world.put(answer, text, sources=["faq/1", "terms"]) is not True:
            world.find("says")
    for event in (
        {"kind": "source_changed", "source": "faq/10"},
        {"kind": "source_changed", "source": "term"},
        {"kind": "policy_changed", "tenant": "nobody"},
        {"kind": "user_deleted", "tenant": theirs["tenant"], "user": "nobody"},
        {"kind": "user_deleted", "tenant": "nobody", "user": mine["user"]},
    ):
        world.call("invalidate", event)
    for answer, text in ((mine, "mine"), (theirs, "theirs")):
        if world.call("get", answer, 1) != text:
            world.find("lost")
    world.call("invalidate", {"kind": "policy_changed", "tenant": mine["tenant"]})
    if world.call("get", mine, 2) is not None:
        world.find("stays")
    if world.call("get", theirs, 2) != "theirs":
        world.find("lost")


# -- what other words may have it


def paraphrases(world: World, rng: random.Random) -> None:
    """The nearest and the farthest that may match, and then the first that may not."""
    for topic in world.topics[:3]:
        mine = request(rng, topic.asks[0])
        world.put(mine, "in three steps")
        for question, nearness in zip(topic.asks[1:], (0.0, 0.15), strict=False):
            world.set_similarity(topic.asks[0], question, round(topic.near + nearness, 4))
            reworded = {**mine, "question": question}
            world.hit(reworded, "in three steps", when="in other words, and near enough")
        far = round(topic.near - rng.uniform(0.01, 0.2), 4)
        world.set_similarity(topic.asks[0], topic.asks[1], far)
        world.miss({**mine, "question": topic.asks[1]}, "unsure", when="below the threshold")


def orders(world: World, rng: random.Random) -> None:
    topic = rng.choice(world.topics[:3])
    mine = request(rng, topic.asks[0])
    world.put(mine, "in three steps")
    world.hit(mine, "in three steps")
    for order in topic.orders:
        when = "an order got the answer to a question about it"
        world.miss({**mine, "question": order}, "acts", when=when)
    order = {**request(rng, topic.orders[0]), "tenant": "orders"}
    world.put(order, "done")
    world.miss(order, "acts", when="the same order was given again")
    for question in (topic.asks[1], topic.orders[-1]):
        world.miss({**order, "question": question}, "acts", when="an order's answer was kept")


def opposites(world: World, rng: random.Random) -> None:
    for topic in world.topics[:3]:
        one, two = topic.asks[0], topic.opposites[0]
        for stored, asked in ((one, two), (two, one)):
            mine = request(rng, stored)
            world.put(mine, "mine")
            world.miss({**mine, "question": asked}, "opposite")


def unsure(world: World, rng: random.Random) -> None:
    """An intent that is not listed, another intent, a question that nobody knows, or none."""
    topic, second, _, unlisted = world.topics
    mine = request(rng, unlisted.asks[0])
    world.put(mine, "mine")
    reworded = {**mine, "question": unlisted.asks[1]}
    world.miss(reworded, "unsure", when="its intent has no threshold")
    mine = request(rng, topic.asks[0])
    world.put(mine, "mine")
    others = {"has another intent": second.asks[0], "is unknown": "What is it?", "is empty": ""}
    for words, question in others.items():
        world.set_similarity(topic.asks[0], question, 0.99)
        world.miss({**mine, "question": question}, "unsure", when=f"a question that {words}")
    unknown = request(rng, "What is that?")
    world.put(unknown, "mine")
    world.set_similarity("What is that?", "What is it?", 0.99)
    world.miss({**unknown, "question": "What is it?"}, "unsure", when="no intent is known")


def model_down(world: World, rng: random.Random) -> None:
    topic = world.topics[1]
    mine = request(rng, topic.asks[0])
    world.put(mine, "mine")
    world.is_down = True
    world.miss({**mine, "question": topic.asks[1]}, "model_failed", when="on a look-up")
    second = request(rng, world.topics[2].asks[0])
    world.put(second, "second")
    world.is_down = False
    world.miss(second, "model_failed", when="when it was to be put")


STORIES: dict[str, tuple[Story, ...]] = {
    "lab5-scope": (
        Story(other_tenants, ("other_tenant", "no_reuse")),
        Story(colleagues, ("no_reuse",)),
        Story(other_users, ("other_user", "no_reuse")),
        Story(replaced, ("service",), is_gate=True),
    ),
    "lab5-key": (
        Story(fields_alone, ("field_ignored", "no_reuse")),
        Story(types_merge, ("types_merge",)),
        Story(texts_merge, ("text_merge",)),
        Story(forms_agree, ("no_reuse",)),
    ),
    "lab5-fresh": (
        Story(time_passes, ("stale_time", "no_reuse")),
        Story(policy_moves, ("stale_policy", "no_reuse")),
        Story(sources_change, ("stale_source",)),
        Story(users_leave, ("left_behind",)),
        Story(unfinished, ("incomplete",)),
        Story(others_stay, ("says", "lost", "stays"), is_gate=True),
    ),
    "lab5-gate": (
        Story(paraphrases, ("no_reuse", "unsure")),
        Story(orders, ("acts", "no_reuse")),
        Story(opposites, ("opposite",)),
        Story(unsure, ("unsure",)),
        Story(model_down, ("model_failed",)),
    ),
}
