# A right way: who owns which blocks is one dictionary, apart from the requests.
# Ending a request moves ownership to the step in flight, if that step uses it.


class CancellableEngine:
    """Requests are plain dictionaries; `owned` is the only place where blocks are written."""

    def __init__(self, pool, emit):
        self.pool, self.emit = pool, emit
        self.queue, self.active = {}, {}
        self.owned = {}
        self.planned = {}
        self.orphans = set()

    def submit(self, request_id, num_prompt_tokens, max_tokens):
        self.queue[request_id] = dict(known=num_prompt_tokens, room=max_tokens, done=0)

    def begin_step(self, token_budget):
        for request_id in list(self.queue):
            request = self.queue[request_id]
            if self.pool.blocks_for(request["known"] + request["room"]) > self.pool.num_free:
                break
            self.owned[request_id] = self.pool.allocate(request["known"] + request["room"])
            self.active[request_id] = self.queue.pop(request_id)
            self.emit("admitted", request_id, None)
        for request_id, request in self.active.items():
            share = min(request["known"] - request["done"], token_budget)
            if share:
                self.planned[request_id] = share
                token_budget -= share
        return [[name, share, list(self.owned[name])] for name, share in self.planned.items()]

    def finish_step(self, token_ids):
        planned, self.planned = self.planned, {}
        for orphan in self.orphans:
            self._free(orphan)
        self.orphans.clear()
        for request_id, share in planned.items():
            request = self.active.get(request_id)
            if request is None:
                continue
            request["done"] += share
            if request_id in token_ids:
                self.emit("token", request_id, token_ids[request_id])
                request["known"] += 1
                request["room"] -= 1
                if request["room"] == 0:
                    self._end(request_id, "length")

    def cancel(self, request_id):
        if request_id not in self.queue and request_id not in self.active:
            return False
        self._end(request_id, "cancelled")
        return True

    def _end(self, request_id, reason):
        self.queue.pop(request_id, None)
        self.active.pop(request_id, None)
        self.emit("finished", request_id, reason)
        if request_id in self.planned:
            self.orphans.add(request_id)
        else:
            self._free(request_id)

    def _free(self, request_id):
        blocks = self.owned.pop(request_id, None)
        if blocks is not None:
            self.pool.release(blocks)
