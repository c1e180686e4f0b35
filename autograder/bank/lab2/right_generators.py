# Another right way: one lazy queue of who comes next, and a loop that pours the budget into it.
from itertools import chain


class StepPlanner:
    def __init__(self, token_budget, max_running, max_bypasses):
        vars(self).update(locals())

    def plan(self, running, waiting, num_free_blocks):
        requests = [View(**r) for r in running]  # noqa: F821  from the notebook's first cell
        put_out = self.put_out(requests, num_free_blocks)
        stay = [r for r in requests if r.id not in put_out]
        left = num_free_blocks - sum(r.num_new_blocks for r in stay)
        newcomers = iter(()) if put_out else self.newcomers(waiting, len(stay), left)
        line = chain(
            (r for r in stay if r.is_answering),
            (r for r in stay if not r.is_answering),
            newcomers,
        )
        return list(self.pour(line)), list(put_out)

    def put_out(self, requests, num_free):
        """The newest, until the rest can have what it needs: recursive, one at a time."""
        if sum(r.num_new_blocks for r in requests) <= num_free:
            return {}
        *others, newest = requests
        return {newest.id: None} | self.put_out(others, num_free + newest.num_blocks)

    def pour(self, line):
        budget = self.token_budget
        while budget > 0:
            request = next(line, None)
            if request is None:
                return
            yield request.id, min(budget, request.num_left)
            budget -= min(budget, request.num_left)

    def newcomers(self, waiting, num_running, num_free):
        passed = {}  # those who are too big: how often they may still be passed
        for each in waiting:
            request = View(**each)  # noqa: F821
            if num_running == self.max_running or any(n <= 0 for n in passed.values()):
                return
            if request.num_new_blocks > num_free:
                passed[request.id] = self.max_bypasses - request.num_bypasses
                continue
            num_running += 1
            num_free -= request.num_new_blocks
            passed = {name: n - 1 for name, n in passed.items()}
            yield request
