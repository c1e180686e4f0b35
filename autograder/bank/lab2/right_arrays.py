# Another right way: who stays and who gets what is read off cumulative sums.
import numpy as np


class StepPlanner:
    def __init__(self, token_budget, max_running, max_bypasses):
        self.token_budget, self.max_running = token_budget, max_running
        self.max_bypasses = max_bypasses

    def plan(self, running, waiting, num_free_blocks):
        held = np.array([r["num_blocks"] for r in running], dtype=int)
        new = np.array([r["num_new_blocks"] for r in running], dtype=int)
        # with the first k of them staying, the others' blocks are free
        need = np.concatenate([[0], np.cumsum(new)])
        free = num_free_blocks + held.sum() - np.concatenate([[0], np.cumsum(held)])
        num_staying = int(np.flatnonzero(need <= free).max())
        staying, victims = running[:num_staying], running[num_staying:]
        prompts = [r for r in staying if not r["is_answering"]]
        if not victims:
            prompts = prompts + self.chosen(waiting, num_staying, free[-1] - need[-1])
        answers = [r for r in staying if r["is_answering"]]
        order = answers + prompts
        wanted = np.array([r["num_left"] for r in order], dtype=int)
        ends = np.minimum(np.cumsum(wanted), self.token_budget)
        given = np.diff(ends, prepend=0)
        rows = [[r["id"], int(n)] for r, n in zip(order, given, strict=True) if n > 0]
        return rows, [r["id"] for r in victims[::-1]]

    def chosen(self, waiting, num_running, free):
        picked, bar = [], None
        for index, request in enumerate(waiting):
            if num_running + len(picked) >= self.max_running:
                break
            if bar is not None and len(picked) >= bar:
                break
            if request["num_new_blocks"] <= free:
                picked.append(request)
                free = free - request["num_new_blocks"]
            else:
                limit = len(picked) + self.max_bypasses - waiting[index]["num_bypasses"]
                bar = limit if bar is None else min(bar, limit)
        return picked
