"""Lab 6: what each kind of failure looks like, which rule it breaks, and where to look."""

from autograder.scoring.base import Advice

ADVICE = {
    "paid_twice": Advice(
        "more was paid than was due",
        "a job's payments are made once, however often it is delivered, completed or asked for",
        "the commits of `complete`, the keys of the ledger, and what `submit` remembers",
    ),
    "half": Advice(
        "the ledger had payments of a job that was not done",
        "the payments and the end of the job are one commit: all of it or nothing",
        "how many commits `complete` makes, and what is true between two of them",
    ),
    "unpaid": Advice(
        "a job was done, and payments of it were missing in the ledger",
        "a job is done when it is paid, in the same commit, and each job has its own payments",
        "what `complete` commits first, and whether two jobs can meet under one key of the ledger",
    ),
    "repeat_refused": Advice(
        "a worker completed its job, its answer was lost, it said so again, and was refused",
        "the same completion, said again with the token that completed the job, is answered True",
        "the first lines of `complete`: whoever is done does not hold the job any more",
    ),
    "key_forgotten": Advice(
        "a client asked again with the same key and an equal body, and got another answer",
        "a key names its job for ever, whatever has become of the job",
        "`submit`, what is kept under a key, and who removes it",
    ),
    "service": Advice(
        "something that worked before does not work any more",
        "ordinary traffic is served as by the version that you were given",
        "the method named here, compared with the version that you were given",
    ),
    "lost": Advice(
        "a job that was accepted was never done, although workers were there",
        "whoever was given an id has a job, and it is handed out until it is done or dead",
        "what `submit` and `claim` commit, and what is left if the process or worker dies then",
    ),
    "other_body": Advice(
        "a key that was in use was accepted with another body",
        "a key is bound to its body: with another one the answer is None, and nothing happens",
        "what `submit` compares",
    ),
    "redelivered": Advice(
        "a job was given to a second worker while the first one held it",
        "whoever renews in time keeps the job, however long it takes",
        "what `renew` changes, what `claim` reads, and what a restart leaves of it",
    ),
    "stuck": Advice(
        "a worker was gone, and its job was not handed out when its lease was over",
        "a lease ends `lease_s` after the claim or the last renewal",
        "from when `renew` counts",
    ),
    "zombie": Advice(
        "somebody who did not hold the job changed something, or was told so",
        "only the latest token of a running job counts, and only within its lease",
        "`held`: state, token and time; and every place that writes `token`",
    ),
    "never_dead": Advice(
        "a job was handed out again after `max_attempts` attempts, or was not dead then",
        "an attempt counts from its claim on: whoever is killed reports nothing",
        "where `attempts` is raised, and what becomes of a lease that ran out",
    ),
    "dead_early": Advice(
        "a job was given up while it had an attempt left",
        "a job has `max_attempts` attempts, and is alive while the last one is running",
        "who raises `attempts`, and where it is compared with `max_attempts`",
    ),
    "miscounted": Advice(
        'a claim did not tell which attempt it is, with 1 for the first ("attempt")',
        "every claim is one attempt more, and a restart forgets none",
        "`claim`, and where the count is kept",
    ),
    "dead_list": Advice(
        "`dead` did not list the dead jobs, in the order of acceptance",
        "whoever looks after dead jobs sees all of them, and no others",
        "`dead`: also those whose last lease has run out",
    ),
    "redrive": Advice(
        "a redrive went wrong",
        "a dead job gets `max_attempts` fresh attempts; any other job is left as it is",
        "`redrive`",
    ),
    "undelivered": Advice(
        "a job that was accepted was not handed out as promised",
        "the first queued job is handed out with its id, a token that is a whole number, its body",
        "what `submit` and `claim` return",
    ),
    "waits": Advice(
        "`wait_s` gave another time than the text asks for",
        "a draw between 0 and the doubled base, at most the cap, after the time that was told",
        "the first attempt, the cap, `told_s` None and 0, and attempt 5,000",
    ),
    "raised": Advice(
        "your code raised an exception",
        "whatever happens to a job, a call ends in the answer that is promised",
        "the line named here",
    ),
}
