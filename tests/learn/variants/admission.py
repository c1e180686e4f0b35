"""Variants of `admission`; see `variants` for their form."""

ADMISSION = """
    from minserve.learn.admissions import AdmissionBase
    from minserve.scheduling.admission import Refuse

    class Door(AdmissionBase):
        def budget(self, request, load):
            kind = request.workload_class
            queued = load.queued_tokens[kind]
            over = queued + load.tokens(request) - self.budgets[kind].max_queued_tokens
            if queued == 0 or over <= 0:
                return None
            must_drain = min(over, queued) + load.promised_tokens[kind]
            return Refuse(must_drain / load.rates.tokens_per_s, "full", "queue_full")

        def pressure(self, request, load):
            kind = request.workload_class
            if load.kv_pressure <= self.budgets[kind].max_kv_pressure:
                return None
            room = max(load.queued_tokens[kind], load.tokens(request))
            room = room + load.promised_tokens[kind]
            return Refuse(room / load.rates.tokens_per_s, "no memory", "kv_pressure")

        def deadline(self, request, load):
            if request.deadline_s is None:
                return None
            alone = load.now_s + load.service_s(request)
            excess = alone + load.drain_s(request.workload_class) - request.deadline_s
            if excess <= 0:
                return None
            retry = excess if alone < request.deadline_s else None
            return Refuse(retry, "late", "deadline_infeasible")
"""

ADMISSION_BY_HAND = """
    from minserve.learn.admissions import AdmissionBase
    from minserve.scheduling.admission import Refuse

    def wait(tokens, request, load):
        ahead = load.promised_tokens.get(request.workload_class, 0)
        return (tokens + ahead) / load.rates.tokens_per_s

    class Door(AdmissionBase):
        def budget(self, request, load):
            waiting = load.queued_tokens.get(request.workload_class, 0)
            limit = self.budgets[request.workload_class].max_queued_tokens
            total = waiting + request.num_prompt_tokens + load.output_tokens(request)
            if waiting and total > limit:
                drained = total - limit
                if drained > waiting:
                    drained = waiting
                return Refuse(wait(drained, request, load), "queue", code="queue_full")

        def pressure(self, request, load):
            if load.kv_pressure > self.budgets[request.workload_class].max_kv_pressure:
                needed = [load.queued_tokens[request.workload_class], load.tokens(request)]
                return Refuse(wait(sorted(needed)[-1], request, load), "kv", code="kv_pressure")

        def deadline(self, request, load):
            if request.deadline_s is not None and load.finish_s(request) > request.deadline_s:
                left = request.deadline_s - load.now_s
                if left <= load.service_s(request):
                    return Refuse(None, "never", code="deadline_infeasible")
                late = load.finish_s(request) - request.deadline_s
                return Refuse(late, "later", code="deadline_infeasible")
"""

RIGHT = ("Door", {"three questions": ADMISSION, "by hand": ADMISSION_BY_HAND})
WRONG = {
    "refuses at the limit": ("over <= 0", "over < 0", "fits", "exactly 1,000 of 1,000"),
    "refuses half full": (
        "if queued == 0 or over <= 0",
        "if queued == 0 or over <= -600",
        "fits",
        "500 of 1,000 tokens would wait",
    ),
    "takes everything": (
        "if queued == 0 or over <= 0",
        "if True",
        "full_queue_refuses",
        "None: is a `return` missing?",
    ),
    "does not count itself": (
        "over = queued + load.tokens(request) -",
        "over = queued -",
        "full_queue_refuses",
        "1,100 tokens would wait",
    ),
    "another code": ('"queue_full"', '"busy"', "full_queue_refuses", "'queue_full', not 'bus"),
    "answers True": (
        "return Refuse(must_drain / load.rates.tokens_per_s",
        'return True\n            return Refuse(0, "full"',
        "full_queue_refuses",
        "a Refuse is wanted, this is True",
    ),
    "writes into the load": (
        "queued = load.queued_tokens[kind]",
        "queued = load.queued_tokens[kind]; load.queued_tokens[kind] += 1",
        "fits",
        "it may only look",
    ),
    "shortens the answer": (
        "queued = load.queued_tokens[kind]",
        "queued = load.queued_tokens[kind]; request.deadline_s = 1.0",
        "fits",
        "it may only look",
    ),
    "counts requests": (
        "over = queued + load.tokens(request) -",
        "over = queued + 200 -",
        "counts_prompt_and_answer",
        "a prompt of 950 tokens",
    ),
    "the prompt only": (
        "over = queued + load.tokens(request) -",
        "over = queued + max(200, request.num_prompt_tokens + 10) -",
        "counts_prompt_and_answer",
        "an answer of 950 tokens",
    ),
    "one queue for all": (
        "queued = load.queued_tokens[kind]",
        "queued = sum(load.queued_tokens.values())",
        "own_class_only",
        "only 100 tokens of its own class wait",
    ),
    "one budget for all": (
        "self.budgets[kind].max_queued_tokens",
        "1000",
        "own_class_only",
        "of the 5,000 tokens of batch",
    ),
    "a long one never": (
        "if queued == 0 or over <= 0",
        "if over <= 0",
        "empty_queue_takes_any",
        "1,600 never fit into 1,000",
    ),
    "always a second": (
        'must_drain / load.rates.tokens_per_s, "full"',
        '1.0, "full"',
        "retry_is_computed",
        "retry_after_s is 0.2, not 1",
    ),
    "the whole queue": (
        "min(over, queued) + load",
        "queued + load",
        "retry_is_computed",
        "retry_after_s is 0.2, not 1.8",
    ),
    "at the prompt's pace": (
        "must_drain / load.rates.tokens_per_s",
        "must_drain / load.rates.prefill_tokens_per_s",
        "retry_is_computed",
        "not 0.05",
    ),
    "longer than the queue": (
        "min(over, queued)",
        "over",
        "waits_for_the_queue_at_most",
        "after 50 the queue is empty",
    ),
    "all return at once": (
        " + load.promised_tokens[kind]\n            return Refuse(must",
        "\n            return Refuse(must",
        "turned_away_come_first",
        "400 tokens were promised before",
    ),
    "full at the limit": (
        "load.kv_pressure <= self",
        "load.kv_pressure < self",
        "pressure_up_to_the_limit",
        "90 % of the blocks are in use",
    ),
    "no look at memory": (
        "if load.kv_pressure <= self.budgets[kind].max_kv_pressure",
        "if True",
        "pressure_refuses",
        "95 % are in use",
    ),
    "one limit for all": (
        "self.budgets[kind].max_kv_pressure",
        "0.9",
        "pressure_by_class",
        "batch may use 50 %",
    ),
    "memory at once": (
        'room / load.rates.tokens_per_s, "no memory"',
        '0.0, "no memory"',
        "pressure_says_when",
        "it needs 200 tokens itself",
    ),
    "memory for itself alone": (
        "max(load.queued_tokens[kind], load.tokens(request))",
        "load.tokens(request)",
        "pressure_says_when",
        "800 tokens wait",
    ),
    "no deadline is now": (
        "if request.deadline_s is None:\n                return None",
        "if request.deadline_s is None:\n                request.deadline_s = load.now_s",
        "no_deadline",
        "it may only look",
    ),
    "a span": (
        "alone = load.now_s + load.service_s(request)",
        "alone = load.service_s(request)",
        "late_is_refused",
        "None: is a `return` missing?",
    ),
    "a moment as a span": (
        "- request.deadline_s",
        "- (request.deadline_s - load.now_s)",
        "deadline_is_a_moment",
        "has time until 103",
    ),
    "nobody is ahead": (
        " + load.drain_s(request.workload_class)",
        "",
        "late_is_refused",
        "900 tokens ahead take 1.8 s",
    ),
    "everybody is ahead": (
        "load.drain_s(request.workload_class)",
        "sum(load.queued_tokens.values()) / load.rates.tokens_per_s",
        "who_is_ahead",
        "people go first",
    ),
    "after the drain": (
        "excess if alone",
        "load.drain_s(request.workload_class) if alone",
        "deadline_says_when",
        "retry_after_s is 0.85, not 1.8",
    ),
    "always hopeful": (
        "excess if alone < request.deadline_s else None",
        "excess",
        "hopeless_has_no_retry",
        "retry_after_s is None, not 2.85",
    ),
}
