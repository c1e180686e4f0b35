"""Lab 1: what each kind of failure looks like, which rule it breaks, and where to look."""

from autograder.scoring.base import Advice

ADVICE = {
    "first_token": Advice(
        "the time to first token was not that of the first chunk that bears a token",
        "a role or an empty chunk is no token; a token may have no text yet",
        "`_first_s`: which chunk does it take, and by what does it know a token?",
    ),
    "last_token": Advice(
        "the whole latency did not end with the last token",
        "the usage chunk is none of the answer; the token that ends it is one, and has no text",
        "`_last_s`: which chunk does it take?",
    ),
    "token_count": Advice(
        "tokens were not counted as chunks bear them",
        "a chunk of k tokens is k tokens",
        "`_num_tokens`, and who else counts chunks",
    ),
    "gaps": Advice(
        "the gaps between tokens were not N - 1 per answer, each of its own length",
        "a chunk of k tokens that comes d seconds after the one before is k gaps of d / k",
        "`_itl_s`: how many gaps does one chunk give, and from which chunk are they counted?",
    ),
    "single_token": Advice(
        "an answer of one token had a time per output token",
        "TPOT is for answers of two tokens or more; the others have none, not 0",
        "`_tpot_s`, when there is no gap",
    ),
    "averaged": Advice(
        "percentiles were not those of all requests together",
        "percentiles are never averaged: they are taken once, over the pooled values",
        "`_spread`: does it see windows, or requests?",
    ),
    "trimmed": Advice(
        "the worst requests were missing from the tail",
        "whoever waited is part of it: a tail without outliers is none",
        "`_spread`: which values does it leave out?",
    ),
    "intended": Advice(
        "time did not count from when a request should have been sent",
        "TTFT and the whole latency begin at intended_s, also if the sender was late",
        "`_ttft_s` and `_e2e_s`",
    ),
    "dispatch": Advice(
        "what the sender itself added was wrong or missing",
        "dispatch_s is sent_s - intended_s of every request",
        "the entry `dispatch_s`, beside the version that you were given",
    ),
    "failures": Advice(
        "failed requests were among the answers' times",
        "an answer is a record whose outcome is ok",
        "which records `_figures` takes for answers",
    ),
    "attainment": Advice(
        "the attainment was not the share of all who tried",
        "good answers, of all that ended ok, error or timeout; rejected ones are counted apart",
        "what the number of good answers is divided by",
    ),
    "rates": Advice(
        "tokens or requests of failures were in the rates, or the duration was another",
        "rates are of answers, by the time from the first intended_s to the last ended_s of all",
        "the sums before the three rates, and whose records they add",
    ),
    "counts": Advice(
        "requests or outcomes were miscounted",
        "every request is counted, under its own outcome",
        "the entries `requests` and `outcomes`",
    ),
    "mixed": Advice(
        "warm and cold records were mixed, or one of the runs was missing",
        "one entry for each cache state that occurs, from its own records",
        "how `figures` makes its groups",
    ),
    "fixed": Advice(
        "has_fixed_lengths was not what the lengths say",
        "True if all answers have one length, or all their prompts have, and there are two or more",
        "`_are_fixed`: which of the lengths does it look at?",
    ),
    "lengths": Advice(
        "the lengths of prompts or answers were wrong or missing",
        "min, p50 and max of both are part of every report",
        "`_lengths`, beside the version that you were given",
    ),
    "plain": Advice(
        "a quiet run is no longer reported as before",
        "where nothing is special, every figure of the first version was right",
        "your figures of a few plain streams, beside those of the version that you were given",
    ),
    "samples": Advice(
        "the number of samples was not the smallest that will do",
        "the smallest n, an int, for which 1 - share^n reaches the confidence",
        "the figure for n - 1: does it fall short?",
    ),
    "raised": Advice(
        "your code raised an exception",
        "a report is made of any records, also of failures alone or answers of one token",
        "the line named here",
    ),
}
