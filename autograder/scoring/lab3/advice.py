"""Lab 3: what each kind of failure looks like, which rule it breaks, and where to look."""

from autograder.scoring.base import Advice

ADVICE = {
    "stranded": Advice(
        "a request was cancelled and its blocks never came back to the pool",
        "every block that is held has an owner that still lives",
        "what `cancel` and `finish_step` do with `request.blocks` at that stage",
    ),
    "released_early": Advice(
        "blocks went back to the pool while the step in flight still computed on them",
        "from begin_step to finish_step the rows of a step keep their blocks",
        "`cancel`, when the request is part of `self.step`: only mark it",
    ),
    "released_twice": Advice(
        "blocks were given back that their request no longer owned",
        "each block is released exactly once, by whoever ends its ownership",
        "every call of `pool.release`: can two of them see the same blocks?",
    ),
    "capacity": Advice(
        "after a storm of cancellations the pool was not whole, or a newcomer was not admitted",
        "when nobody runs, every block is free",
        "the picture of the incident: at which stage do its two lines part?",
    ),
    "stolen": Advice(
        "a running request computed on blocks that were free or somebody else's",
        "a block in use has exactly one owner",
        "a release that comes late: whose blocks are these ids by then?",
    ),
    "idle": Advice(
        "nobody was computed although a request could run",
        "whoever fits is admitted and computed",
        "`begin_step`: what it returns, and whether requests are ever admitted",
    ),
    "cut_off": Advice(
        "somebody who had cancelled nothing lost a token or never finished",
        "cancelling one request changes nothing for the others",
        "what an early return or an exception in the middle of a step leaves undone",
    ),
    "ghost": Advice(
        "a request that was cancelled while it waited ran all the same, or could not be cancelled",
        "a cancelled request is never admitted",
        "`self.waiting` in `cancel`",
    ),
    "wrong_answer": Advice(
        "`cancel` did not return True for a live request, or False for an unknown or ended one",
        "only the first cancellation of a live request does something, and says so",
        "the first lines and the last line of `cancel`",
    ),
    "service": Advice(
        "requests that nobody cancelled are no longer admitted and computed as before",
        "first come, first served, within the budget; all who fit run together",
        "`begin_step` and `finish_step`, compared with the version that you were given",
    ),
    "ends": Advice(
        "a request did not get exactly one terminal event with the right reason",
        "one terminal event per request",
        "every place that emits 'finished'",
    ),
    "token_after_end": Advice(
        "a request was computed or got a token after its terminal event",
        "nothing follows the terminal event",
        "the cancelled rows in `finish_step`",
    ),
    "raised": Advice(
        "your code raised an exception",
        "no public method raises, whatever was cancelled before",
        "the line named here",
    ),
}
