# Another right way: an explicit state per request, and one sweep that gives back what is due.


WAITING, RUNNING, ENDED, GONE = range(4)


class Ticket:
    def __init__(self, name, prompt, limit):
        self.name, self.prompt, self.limit = name, prompt, limit
        self.state, self.computed, self.made, self.table = WAITING, 0, 0, []
        self.is_computing = 0


class CancellableEngine:
    """Every public method ends with `_sweep`, the only caller of `pool.release`."""

    def __init__(self, pool, emit):
        self.pool = pool
        self.emit = emit
        self.tickets = []

    def submit(self, request_id, num_prompt_tokens, max_tokens):
        self.tickets.append(Ticket(request_id, num_prompt_tokens, max_tokens))

    def begin_step(self, token_budget):
        for ticket in self.tickets:
            if ticket.state != WAITING:
                continue
            try:
                ticket.table = self.pool.allocate(ticket.prompt + ticket.limit)
            except OutOfBlocks:  # noqa: F821  imported by the notebook's first cell
                break
            ticket.state = RUNNING
            self.emit("admitted", ticket.name, None)
        rows = []
        for ticket in self.tickets:
            if ticket.state == RUNNING and token_budget > 0:
                left = ticket.prompt + ticket.made - ticket.computed
                ticket.is_computing = min(left, token_budget)
                token_budget -= ticket.is_computing
                rows.append((ticket.name, ticket.is_computing, tuple(ticket.table)))
        return rows

    def finish_step(self, token_ids):
        for ticket in self.tickets:
            computed, ticket.is_computing = ticket.is_computing, 0
            if not computed or ticket.state != RUNNING:
                continue
            ticket.computed += computed
            token = token_ids.get(ticket.name)
            if token is not None:
                ticket.made += 1
                self.emit("token", ticket.name, token)
            if ticket.made == ticket.limit:
                ticket.state = ENDED
                self.emit("finished", ticket.name, "length")
        self._sweep()

    def cancel(self, request_id):
        for ticket in self.tickets:
            if ticket.name == request_id and ticket.state in (WAITING, RUNNING):
                ticket.state = ENDED
                self.emit("finished", request_id, "cancelled")
                self._sweep()
                return True
        return False

    def _sweep(self):
        for ticket in self.tickets:
            if ticket.state == ENDED and not ticket.is_computing:
                self.pool.release(ticket.table)
                ticket.state = GONE
        self.tickets = [ticket for ticket in self.tickets if ticket.state != GONE]
