"""Lab 6's scenarios: each plays one story with drawn values and counts what its cell scores."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

from autograder.scoring.lab6.world import WORKERS, Killed, Order, World, order
from autograder.scoring.stories import Story

MAX_COMMITS = 40  # at which a life is killed, one after another


# -- once, and whole; nothing lost


# NOTE: times that lie exactly at the end of a lease are whole numbers, so that no way to compare
# them rounds them to the wrong side.
def crashes(world: World, rng: random.Random) -> None:
    """Two jobs for the same account and sum, killed before and after each of their commits."""
    one = order(rng)
    two = replace(one, key=f"{one.key}b")
    for number in range(1, MAX_COMMITS):
        for is_before in (True, False):
            world.begin(rng.randint(0, 1000))
            world.store.kill_at_commit(number, is_before)
            told: dict[str, str] = {}
            doing = ["submit"]
            try:
                live(world, (one, two), told, doing)
            except Killed:
                world.restart()
            else:
                return
            when = f"killed {'before' if is_before else 'after'} a commit of {doing[-1]}"
            recover(world, (one, two), told, when)


def live(world: World, orders: tuple[Order, ...], told: dict[str, str], doing: list[str]) -> None:
    """Both jobs from beginning to end; `told` and `doing` say how far it went."""
    for wanted in orders:
        told[wanted.key] = world.submit(wanted)
    for wanted in orders:
        job = told[wanted.key]
        doing.append("claim")
        claim = world.claim(job, wanted)
        world.now_s += 0.4 * world.lease_s
        doing.append("renew")
        world.tell("renew", job, claim["token"])
        world.now_s += 0.4 * world.lease_s
        doing.append("complete")
        world.complete(job, claim, wanted)


def recover(world: World, orders: tuple[Order, ...], told: dict[str, str], when: str) -> None:
    """The clients ask again, the workers carry on: in the end all is done, and paid once."""
    world.now_s += 1
    jobs = {world.submit(wanted): wanted for wanted in orders}
    if len(jobs) < len(orders) or not set(told.values()) <= set(jobs):
        world.find("lost", f"{when}; then its client asked again and got another id")
    world.audit(jobs, when)
    for _ in range(world.max_attempts):
        world.now_s += world.lease_s
        world.work_off(jobs)
    if any(world.state(job) != "done" for job in jobs):
        world.find("lost", when)
    world.audit(jobs, when)


def repeats(world: World, rng: random.Random) -> None:
    """The answer of a completion is lost: it is said again, soon, late, and to a new process."""
    wanted = order(rng)
    job = world.submit(wanted)
    claim = world.claim(job, wanted)
    world.now_s += 0.5 * world.lease_s
    for passed_s in (0, 1, 2 * world.lease_s):
        world.now_s += passed_s
        if world.complete(job, claim, wanted) is not True:
            world.find("repeat_refused")
        if passed_s == 1:
            world.restart()
    world.audit({job: wanted}, "its completion was said again")


def retries(world: World, rng: random.Random) -> None:
    """The client asks again: while it waits, while it runs, when it is done, when it is dead."""
    wanted = order(rng)
    turned = replace(wanted, body=dict(reversed(wanted.body.items())))
    job = world.submit(wanted)

    def again(which: Order, when: str) -> None:
        if world.tell("submit", which.key, which.body) != job:
            world.find("key_forgotten", when)

    again(wanted, "while it is queued")
    again(turned, "with the fields of its body in another order")
    claim = world.claim(job, wanted)
    again(wanted, "while it is running")
    world.restart()
    again(wanted, "after the process was started again")
    world.now_s += 0.5 * world.lease_s
    world.complete(job, claim, wanted)
    again(wanted, "when it was done")
    world.now_s += 2 * world.lease_s
    world.work_off({job: wanted})
    world.audit({job: wanted}, "its client asked again when it was done")


def ordinary(world: World, rng: random.Random) -> None:
    """Traffic without mishaps."""
    orders = [order(rng) for _ in range(4)]
    jobs = [world.tell("submit", wanted.key, wanted.body) for wanted in orders]
    if len(set(map(str, jobs))) < 4 or any(type(job) is not str for job in jobs):
        return world.find("service", "four orders, each with an id of its own")
    held = []
    for number, (job, wanted) in enumerate(zip(jobs, orders, strict=True)):
        if world.state(job) != "queued":
            world.find("service", "`status` of a job that waits")
        claim = world.tell("claim", WORKERS[number % 2])
        if type(claim) is not dict or claim.get("job") != job or claim.get("body") != wanted.body:
            return world.find("service", "jobs are claimed in the order of acceptance")
        held.append((job, claim, wanted))
    if world.tell("claim", "three") is not None:
        world.find("service", "`claim` when nothing is queued")
    failed = held.pop(rng.randrange(4))
    if world.tell("fail", failed[0], failed[1]["token"], "no line") is not True:
        world.find("service", "`fail`")
    claim = world.tell("claim", "three")
    if type(claim) is not dict or claim.get("job") != failed[0]:
        return world.find("service", "a job that failed is queued again")
    held.append((failed[0], claim, failed[2]))
    rng.shuffle(held)
    for job, claim, wanted in held:
        world.now_s += 1
        result = {"number": rng.randrange(100)}
        if world.tell("renew", job, claim["token"]) is not True:
            world.find("service", "`renew`")
        if world.complete(job, claim, wanted, result) is not True:
            world.find("service", "`complete`")
        told = world.tell("status", job)
        told = told if type(told) is dict else {}
        if (told.get("state"), told.get("result")) != ("done", result):
            world.find("service", "`status` of a job that is done")
    if world.tell("status", "no such job") is not None or world.tell("dead") != []:
        world.find("service", "`status` of an unknown job, `dead` when none is")
    if world.tell("claim", "four") is not None:
        world.find("service", "`claim` when all is done")


def workers_die(world: World, rng: random.Random) -> None:
    """Whoever held a job is gone: it is handed out again, in its old place."""
    orders = [order(rng), order(rng)]
    jobs = [world.submit(wanted) for wanted in orders]
    for _ in range(rng.randint(1, world.max_attempts - 2)):
        for job, wanted in zip(jobs, orders, strict=True):
            claim = world.tell("claim", rng.choice(WORKERS))
            if claim is None:
                return world.find("lost", "a worker died with it in its hands")
            world.checked(claim, job, wanted)
        if rng.random() < 0.5:
            world.restart()
        world.now_s += world.lease_s + rng.choice((0, 1, 100))
    world.work_off(dict(zip(jobs, orders, strict=True)))
    if any(world.state(job) != "done" for job in jobs):
        world.find("lost", "a worker died with it in its hands")
    world.audit(dict(zip(jobs, orders, strict=True)), "after its worker had died")


def other_bodies(world: World, rng: random.Random) -> None:
    wanted = order(rng, note={"lines": [1, 2]})
    job = world.submit(wanted)
    bodies: tuple[dict[str, Any], ...] = (
        wanted.body | {"cents": wanted.body["cents"] + 1},
        wanted.body | {"to": "acct-x"},
        wanted.body | {"more": None},
        wanted.body | {"note": {"lines": [2, 1]}},
        {"cents": wanted.body["cents"]},
    )

    def ask(when: str) -> None:
        if any(world.tell("submit", wanted.key, body) is not None for body in bodies):
            world.find("other_body", when)

    ask("while the first is queued")
    claim = world.claim(job, wanted)
    ask("while the first is running")
    world.complete(job, claim, wanted)
    world.restart()
    ask("when the first was done")
    if world.tell("claim", "two") is not None:
        world.find("other_body", "it was even handed out")


# -- who holds it


def renewed(world: World, rng: random.Random) -> None:
    """Work that takes many leases, and is renewed in time; then its worker is gone."""
    wanted = order(rng)
    job = world.submit(wanted)
    token = world.claim(job, wanted)["token"]
    for _ in range(rng.randint(6, 9)):
        part = rng.uniform(0.2, 0.8)
        world.now_s += part * world.lease_s
        if world.tell("renew", job, token) is not True:
            return world.find("redelivered", "`renew` was refused to the one who holds the job")
        if rng.random() < 0.3:
            world.restart()
        for share in (0.1, 0.09):
            world.now_s += share * world.lease_s
            if world.tell("claim", "two") is not None:
                return world.find("redelivered")
    world.now_s += 0.8 * world.lease_s
    if world.tell("claim", "two") is not None:
        return world.find("redelivered", "shortly before the lease ended that was renewed last")
    world.now_s += 0.02 * world.lease_s
    if world.tell("claim", "two") is None:
        world.find("stuck")


def left_alone(world: World, rng: random.Random) -> None:
    """A first lease lasts as long as it should, and no longer."""
    wanted = order(rng)
    job = world.submit(wanted)
    world.claim(job, wanted)
    end_s = world.now_s + world.lease_s
    world.now_s = end_s - 0.5
    if world.tell("claim", "two") is not None:
        world.find("redelivered", "before its first lease was over")
    world.now_s = end_s + rng.choice((0, 1))
    if world.tell("claim", "two") is None:
        world.find("stuck", "it was never renewed")


def refuse(world: World, job: str, token: Any, wanted: Order, when: str) -> None:
    """Everything that this token asks for is refused, and changes nothing."""
    before, paid = world.tell("status", job), world.store.paid()
    for method, args in (
        ("renew", []),
        ("complete", ["late", wanted.payments]),
        ("complete", ["late", {"other": {"to": "acct-y", "cents": 1}}]),
        ("fail", ["late"]),
    ):
        told = world.tell(method, job, token, *args)
        if told is not False or world.store.paid() != paid:
            return world.find("zombie", f"{method}, {when}")
    if world.tell("status", job) != before:
        world.find("zombie", when)


def late_workers(world: World, rng: random.Random) -> None:
    """A worker wakes up: when nobody has its job yet, when another has, when it is done."""
    wanted = order(rng)
    job = world.submit(wanted)
    late = world.claim(job, wanted)["token"]
    world.now_s += world.lease_s + rng.choice((0, 1, 500))
    refuse(world, job, late, wanted, "its lease has run out and nobody has the job yet")
    world.restart()
    claim = world.claim(job, wanted, rng.choice(("one", "two")))
    refuse(world, job, late, wanted, "another worker has the job")
    refuse(world, job, claim["token"] + 1, wanted, "with a token that nobody was given")
    if world.complete(job, claim, wanted, "in time") is not True:
        world.find("zombie", "the one who holds the job could not complete it any more")
    refuse(world, job, late, wanted, "another worker has completed the job")


def failed_once(world: World, rng: random.Random) -> None:
    """Who has given a job up does not hold it any more; nor does the token of another job."""
    wanted, other = order(rng), order(rng)
    job = world.submit(wanted)
    token = world.claim(job, wanted)["token"]
    world.tell("fail", job, token, "no line")
    refuse(world, job, token, wanted, "after it failed")
    claim = world.claim(job, wanted)
    refuse(world, job, token, wanted, "after it failed and another has the job")
    world.complete(job, claim, wanted)
    second = world.submit(other)
    refuse(world, second, claim["token"], other, "nobody has claimed that job")
    refuse(world, "no such job", claim["token"], other, "that job does not exist")


def lives_ago(world: World, rng: random.Random) -> None:
    """A dead job is redriven, and a worker of its former life wakes up."""
    wanted = order(rng)
    job = world.submit(wanted)
    tokens = []
    for _ in range(world.max_attempts):
        tokens.append(world.claim(job, wanted)["token"])
        world.now_s += world.lease_s
    refuse(world, job, tokens[-1], wanted, "the job is dead")
    world.tell("redrive", job)
    for token in tokens:
        claim = world.claim(job, wanted)
        refuse(world, job, token, wanted, "the job was redriven since")
        world.tell("fail", job, claim["token"], "no line")


# -- poison


def attempts(world: World, rng: random.Random, endings: tuple[str, ...]) -> tuple[str, Order]:
    """A job whose every attempt comes to nothing, watched to its end."""
    wanted, when = order(rng), f"its attempts ended by: {', '.join(endings)}"
    job = world.submit(wanted)
    for number in range(1, world.max_attempts + 1):
        claim = world.tell("claim", rng.choice(WORKERS))
        if claim is None and number > 1:
            world.find("dead_early", when)
            break
        if world.checked(claim, job, wanted).get("attempt") != number:
            world.find("miscounted", when)
        if world.state(job) != "running" or world.tell("dead") != []:
            world.find("dead_early", f"{when}; the last one was still at work")
        ending = rng.choice(endings)
        world.now_s += 1
        if ending == "fail":
            world.tell("fail", job, claim["token"], "no line")
        else:
            world.now_s += world.lease_s
            if ending == "crash of the machine":
                world.restart()
    if world.state(job) != "dead":
        world.find("never_dead", when)
    if world.tell("dead") != [job]:
        world.find("dead_list", when)
    if world.tell("claim", "two") is not None:
        world.find("never_dead", when)
    return job, wanted


def poison(world: World, rng: random.Random) -> None:
    """Killed, failed, or both; the job behind it is done all the same."""
    for endings in (
        ("crash",),
        ("crash of the machine",),
        ("fail",),
        ("crash", "fail", "crash of the machine"),
    ):
        world.begin(rng.randint(0, 1000))
        job, wanted = attempts(world, rng, endings)
        if world.tell("submit", wanted.key, wanted.body) != job or world.tell("claim", "two"):
            return world.find("never_dead", "its client asked again")
        other = order(rng)
        behind = world.submit(other)
        world.complete(behind, world.claim(behind, other), other)
        world.audit({job: wanted, behind: other})


def last_chance(world: World, rng: random.Random) -> None:
    """The last attempt that is left may succeed."""
    wanted = order(rng)
    job = world.submit(wanted)
    world.claim(job, wanted)
    for _ in range(world.max_attempts - 2):
        world.now_s += world.lease_s
        if world.tell("claim", "one") is None:
            return world.find("dead_early")
    world.now_s += world.lease_s
    claim = world.tell("claim", "one")
    if claim is None:
        return world.find("dead_early", "it had one attempt left")
    world.checked(claim, job, wanted)
    world.now_s += 0.9 * world.lease_s
    if world.complete(job, claim, wanted) is not True or world.state(job) != "done":
        world.find("dead_early", "its last attempt succeeded")


def redriven(world: World, rng: random.Random) -> None:
    """Dead jobs in order; one gets all its attempts back; others cannot be redriven."""
    orders = [order(rng) for _ in range(3)]
    jobs = [world.submit(wanted) for wanted in orders]
    for _ in range(world.max_attempts):
        for job, wanted in zip(jobs, orders, strict=True):
            world.claim(job, wanted)
        world.now_s += world.lease_s
    if world.tell("dead") != jobs:
        world.find("dead_list", "three jobs are dead")
    job, wanted = jobs[0], orders[0]  # the first in the queue again
    if world.tell("redrive", job) is not True or world.state(job) != "queued":
        return world.find("redrive", "of a dead job")
    if world.tell("dead") != [other for other in jobs if other != job]:
        world.find("dead_list", "one of three was redriven")

    def none(name: str, when: str) -> None:
        before = world.tell("status", name)
        if world.tell("redrive", name) is not False or world.tell("status", name) != before:
            world.find("redrive", when)

    none(job, "of a job that is queued")
    none("no such job", "of a job that does not exist")
    for _ in range(world.max_attempts - 1):
        if world.tell("claim", "one") is None:
            return world.find("redrive", "it did not get all its attempts back")
        none(job, "of a job that is running")
        world.now_s += world.lease_s
    claim = world.tell("claim", "two")
    if type(claim) is not dict or claim.get("job") != job:
        return world.find("redrive", "it did not get all its attempts back")
    if world.complete(job, claim, wanted) is True:
        none(job, "of a job that is done")


# The longest one is played once per cell: it goes through all moments by itself.
CRASHES = {
    "lab6-once": Story(crashes, ("paid_twice", "half", "undelivered")),
    "lab6-accepted": Story(crashes, ("lost", "unpaid", "undelivered")),
}
STORIES: dict[str, tuple[Story, ...]] = {
    "lab6-once": (
        Story(repeats, ("paid_twice", "repeat_refused", "unpaid", "undelivered")),
        Story(retries, ("paid_twice", "key_forgotten", "undelivered")),
        Story(ordinary, ("service",), is_gate=True),
    ),
    "lab6-accepted": (
        Story(workers_die, ("lost", "unpaid", "undelivered")),
        Story(other_bodies, ("other_body", "undelivered")),
    ),
    "lab6-lease": (
        Story(renewed, ("redelivered", "stuck", "undelivered")),
        Story(left_alone, ("redelivered", "stuck", "undelivered")),
        Story(late_workers, ("zombie", "undelivered")),
        Story(failed_once, ("zombie", "undelivered")),
        Story(lives_ago, ("zombie",)),
    ),
    "lab6-poison": (
        Story(poison, ("never_dead", "dead_early", "miscounted", "dead_list", "undelivered")),
        Story(last_chance, ("dead_early", "undelivered")),
        Story(redriven, ("redrive", "dead_list")),
    ),
}
