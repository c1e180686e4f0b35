"""The rules of `continuous_batching(view, token_budget, max_running)`, in three steps."""

from __future__ import annotations

from minserve.learn.conformance import Ladder, Rule, Suite
from minserve.learn.conformance.batching import Asked, Policy, halfway, queues, reader, writer

JOIN, CHUNK, MEMORY = "join", "chunk", "memory"


def _settings(token_budget: int = 100, max_running: int = 8) -> dict[str, float]:
    return {"token_budget": token_budget, "max_running": max_running}


def _writers_write(policy: Policy) -> None:
    for running in ([writer("r")], [writer("r"), writer("s")]):
        asked = Asked(policy, _settings(), running=running)
        asked.expect(*[(r.id, 1) for r in running], because="whoever writes gets one token a step")


def _joins_a_running_batch(policy: Policy) -> None:
    for queue in queues((2, 3), 2):
        asked = Asked(policy, _settings(), running=[writer("r")], waiting=queue)
        wanted = [("r", 1), *((a.id, a.num_to_compute) for a in queue)]
        if asked.tokens != dict(wanted):
            asked.expect(*wanted, because="there is room, so whoever waits joins at once")


def _at_most_max_running(policy: Policy) -> None:
    for num_running in range(3):
        running = [writer(name) for name in "rs"[:num_running]]
        queue = [reader(name, 2) for name in "abc"]
        asked = Asked(policy, _settings(max_running=2), running=running, waiting=queue)
        if len(asked.run) != 2:
            asked.fail(f"max_running is 2: 2 run in this step, not {len(asked.run)}")


def _readers_count_as_running(policy: Policy) -> None:
    running, queue = [halfway("r", 3), writer("s")], [reader("a", 2)]
    asked = Asked(policy, _settings(max_running=2), running=running, waiting=queue)
    if "a" in asked.tokens:
        asked.fail("r and s run already, and max_running is 2: a must wait")


def _never_over_budget(policy: Policy) -> None:
    for queue in queues((2, 5), 2):
        for budget in (3, 4):
            asked = Asked(policy, _settings(budget), running=[writer("r")], waiting=queue)
            spent = sum(asked.tokens.values())
            if spent > budget:
                asked.fail(f"the step computes {spent} tokens, and the budget is {budget}")


def _cuts_a_long_prompt(policy: Policy) -> None:
    asked = Asked(policy, _settings(4), waiting=[reader("a", 9)])
    asked.expect(("a", 4), because="the budget is 4: a reads 4 tokens now, and the rest later")
    asked = Asked(policy, _settings(4), running=[writer("r")], waiting=[reader("a", 9)])
    if (got := asked.tokens.get("a", 0)) != 3:
        asked.fail(f"r writes 1 token, so 3 of 4 are left for a; it gets {got}")


def _writers_come_first(policy: Policy) -> None:
    running = [halfway("p", 9), writer("r"), writer("s")]
    asked = Asked(policy, _settings(4), running=running, waiting=[reader("a", 9)])
    for name in "rs":
        if name not in asked.tokens:
            asked.fail(f"{name} writes, and must not stand still while p reads its long prompt")
    if asked.tokens.get("p") != 2:
        asked.fail(f"2 of 4 tokens are left for p; it gets {asked.tokens.get('p', 0)}")


def _who_has_begun_goes_on_first(policy: Policy) -> None:
    asked = Asked(policy, _settings(4), running=[halfway("p", 9)], waiting=[reader("a", 2)])
    asked.expect(("p", 4), because="p began to read before a came: it has the budget first")
    asked = Asked(policy, _settings(4), running=[halfway("p", 3)], waiting=[reader("a", 2)])
    asked.expect(("p", 3), ("a", 1), because="p needs 3 of 4, so a can begin with 1")


def _fits_in_memory(policy: Policy) -> None:
    for queue in queues((2, 3), 3):
        for free in range(2, 8):
            asked = Asked(policy, _settings(), waiting=queue, free_tokens=free)
            held = sum(request.num_to_hold for request, _ in asked.run)
            if held > free:
                asked.fail(f"{held} tokens of memory are needed, {free} are free")
    queue = [reader("a", 2)]
    if not Asked(policy, _settings(), waiting=queue, free_tokens=2).run:
        Asked(policy, _settings(), waiting=queue, free_tokens=2).fail("a fits exactly")


def _writers_need_memory_too(policy: Policy) -> None:
    running, queue = [writer("r", num_to_hold=2)], [reader("a", 3)]
    asked = Asked(policy, _settings(), running=running, waiting=queue, free_tokens=4)
    if "a" in asked.tokens:
        asked.fail("4 tokens of memory are free, but r needs 2 of them to go on writing")


def _nobody_overtakes(policy: Policy) -> None:
    queue = [reader("a", 5), reader("b", 2)]
    asked = Asked(policy, _settings(), waiting=queue, free_tokens=4)
    if "b" in asked.tokens:
        asked.fail("a does not fit, so b must not pass it: a could wait for ever")


def _memory_is_for_whole_prompts(policy: Policy) -> None:
    asked = Asked(policy, _settings(4), waiting=[reader("a", 9)], free_tokens=8)
    if asked.run:
        asked.fail("a begins with 4 tokens, but its prompt needs room for 9, and 8 are free")


RULES = (
    Rule(
        "writers_write",
        JOIN,
        "Everybody who writes gets one token in every step.",
        "Those in view.running with is_prefill False.",
        _writers_write,
    ),
    Rule(
        "joins_a_running_batch",
        JOIN,
        "Whoever waits joins at the next step, while others are running.",
        "After those who run, look at view.waiting, whether or not somebody runs.",
        _joins_a_running_batch,
    ),
    Rule(
        "at_most_max_running",
        JOIN,
        "At most max_running requests run at a time.",
        "max_running - len(view.running) may join.",
        _at_most_max_running,
    ),
    Rule(
        "readers_count_as_running",
        JOIN,
        "Whoever reads its prompt is running too.",
        "Count view.running, and not only those who write.",
        _readers_count_as_running,
    ),
    Rule(
        "never_over_budget",
        CHUNK,
        "A step computes at most token_budget tokens.",
        "Take away from the budget whatever you hand out.",
        _never_over_budget,
    ),
    Rule(
        "cuts_a_long_prompt",
        CHUNK,
        "A prompt that is longer than the budget is read in chunks.",
        "min(request.num_to_compute, budget)",
        _cuts_a_long_prompt,
    ),
    Rule(
        "writers_come_first",
        CHUNK,
        "Nobody who writes stands still because somebody else reads.",
        "Hand out the single tokens first, then the chunks.",
        _writers_come_first,
    ),
    Rule(
        "who_has_begun_goes_on_first",
        CHUNK,
        "Prompts that were begun are finished before new ones are.",
        "Readers in view.running first, then view.waiting.",
        _who_has_begun_goes_on_first,
    ),
    Rule(
        "fits_in_memory",
        MEMORY,
        "Whoever joins fits into the free memory, exactly if need be.",
        "Subtract num_to_hold of everybody who joins.",
        _fits_in_memory,
    ),
    Rule(
        "writers_need_memory_too",
        MEMORY,
        "What those who write need is not given away.",
        "Begin with view.free_tokens minus the num_to_hold of all writers.",
        _writers_need_memory_too,
    ),
    Rule(
        "memory_is_for_whole_prompts",
        MEMORY,
        "A request joins only if its whole prompt has room, not just the first chunk.",
        "Compare num_to_hold with the free memory, whatever the chunk is.",
        _memory_is_for_whole_prompts,
    ),
    Rule(
        "nobody_overtakes",
        MEMORY,
        "If the next in line does not fit, nobody behind it joins.",
        "Use `break`. (The engine's own lets a few pass, and counts them.)",
        _nobody_overtakes,
    ),
)

SUITE = Suite(
    "continuous_batching",
    (JOIN, CHUNK, MEMORY),
    RULES,
    {
        JOIN: Ladder(
            drawing="""\
at most 2 at a time; R reads, w writes

  a   R w w
  b   R w w w w w w
  c   . . . R w w            c takes a's place in the very next step
  d   . . . . . . R w""",
            pseudocode="""\
run = one token for each who writes
slots = max_running - how many run
for each who waits, while there are slots:  all its tokens""",
            near_miss="""\
- slots = max_running - len(run)
+ slots = max_running - len(view.running)      (readers run, too)""",
        ),
        CHUNK: Ladder(
            drawing="""\
budget 4: r and s write, p reads 9 tokens

  step     1    2    3    4    5
  r, s    1+1  1+1  1+1  1+1  1+1
  p        2    2    2    2    1      r and s never stand still""",
            pseudocode="""\
budget = token_budget - number of writers
for p in readers that run, then in those who wait:
    give min(what p needs, budget), and take it from the budget""",
            near_miss="""\
- run.append((request, request.num_to_compute))
+ num_tokens = min(request.num_to_compute, budget)
+ run.append((request, num_tokens))
+ budget -= num_tokens""",
        ),
        MEMORY: Ladder(
            drawing="""\
free memory 8:  r writes and will need 2        8 - 2 = 6 are left
                a needs 5                       joins, 1 is left
                b needs 3                       waits, and everybody behind it""",
            pseudocode="""\
free = free_tokens - what the writers need
for each who waits:
    if num_to_hold > free:  stop
    free -= num_to_hold""",
            near_miss="""\
- if num_tokens > free:                 (the chunk fits, the prompt does not)
+ if request.num_to_hold > free:
      break""",
        ),
    },
)
