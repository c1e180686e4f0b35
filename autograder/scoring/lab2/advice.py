"""Lab 2: what each kind of failure looks like, which rule it breaks, and where to look."""

from autograder.scoring.base import Advice

ADVICE = {
    "left_out": Advice(
        "a running answer got no token in a step that computed prompts",
        "every running answer gets its one token in every step",
        "who takes from the budget first, and whether a share limits the answers",
    ),
    "gap": Advice(
        "an answer paused for longer than a full step and half of one",
        "everybody in a step waits for all of it, so no step is larger than the budget",
        "the largest number of tokens that one prompt can get in a step",
    ),
    "overspent": Advice(
        "a step computed more tokens than its budget",
        "one budget per step, for answers and prompts together",
        "where the budget is taken from: does each row take its tokens?",
    ),
    "idle": Advice(
        "a step left budget unused although a prompt could have had it",
        "what the answers leave goes to prompts, as long as there are any",
        "what happens when the first prompt needs less than is left",
    ),
    "tokens": Advice(
        "a plan had a row for nobody, two for one request, or more tokens than are left",
        "each token is computed exactly once",
        "how each row's number of tokens is bounded, and what `plan` returns",
    ),
    "crowded": Advice(
        "more requests were running than max_running allows",
        "running and newly admitted ones together are at most max_running",
        "`num_slots` in `_admissible`",
    ),
    "blocked": Advice(
        "a small request that fits waited behind one that does not",
        "one that has too few blocks may be passed by those that fit, up to its limit",
        "what `_admissible` does at the first request that does not fit",
    ),
    "starved": Advice(
        "later ones were served although an earlier one was due",
        "first come, first served, and nobody is passed more than max_bypasses times",
        "the order in which prompts are served, and where `num_bypasses` is looked at",
    ),
    "stuck": Advice(
        "somebody never finished although there was time and memory",
        "whoever can ever be served is served at last",
        "which condition can stay false for ever for a request like that",
    ),
    "service": Advice(
        "short requests with enough of everything are no longer served as before",
        "first come, first served, within the budget; all who fit run together",
        "your plan for one short prompt and a few answers, beside the one you were given",
    ),
    "victim_runs": Advice(
        "a request was put out and had a row in the same step",
        "a victim has given its blocks back: it is not computed in that step",
        "from which list the rows are made, and whether victims have left it",
    ),
    "victims": Advice(
        "the wrong requests made room",
        "those admitted last make room, as few as will do, and nobody if the blocks suffice",
        "the order and the stopping rule in `_make_room`",
    ),
    "thrash": Advice(
        "a step that put somebody out admitted somebody else",
        "a step that has victims admits nobody: the freed blocks are for those who stay",
        "what `plan` does with `waiting` when there are victims",
    ),
    "no_blocks": Advice(
        "a row needed blocks that were not there",
        "each admission takes its blocks from what the next may count on",
        "where `num_free_blocks` becomes less",
    ),
    "budget": Advice(
        "the largest budget was not the one that keeps the limit",
        "base_us + budget * token_us is at most gap_us, and budget is larger than max_running",
        "the step's fixed part, and the case in which no budget will do",
    ),
    "raised": Advice(
        "your code raised an exception",
        "a plan is made for every snapshot, also an empty one",
        "the line named here",
    ),
}
