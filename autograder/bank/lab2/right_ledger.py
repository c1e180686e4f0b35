# A right way: everybody asks a ledger for tokens, a place and blocks; the ledger says how much.


class Ledger:
    """What is left of one step."""

    def __init__(self, tokens, places, blocks):
        self.tokens, self.places, self.blocks = tokens, places, blocks
        self.rows = []

    def spend(self, request, blocks=0):
        granted = min(request["num_left"], self.tokens)
        if granted < 1:
            return False
        self.rows.append((request["id"], granted))
        self.tokens -= granted
        self.blocks -= blocks
        return True


class StepPlanner:
    def __init__(self, token_budget, max_running, max_bypasses):
        self.limits = token_budget, max_running, max_bypasses

    def plan(self, running, waiting, num_free_blocks):
        budget, max_running, max_bypasses = self.limits
        short = sum(r["num_new_blocks"] for r in running) - num_free_blocks
        keep = len(running)
        while short > 0:
            keep -= 1
            short -= running[keep]["num_blocks"] + running[keep]["num_new_blocks"]
        stay, victims = running[:keep], running[keep:]
        ledger = Ledger(budget, max_running - keep, -short)
        for wants_answer in (True, False):
            for request in stay:
                if request["is_answering"] == wants_answer:
                    ledger.spend(request)
        if not victims:
            self.admit(ledger, waiting, max_bypasses)
        return ledger.rows[::-1], [request["id"] for request in victims]

    @staticmethod
    def admit(ledger, waiting, max_bypasses):
        passes = float("inf")  # that those who are too big still grant
        for request in waiting:
            if ledger.places < 1 or passes < 1:
                return
            if request["num_new_blocks"] > ledger.blocks:
                passes = min(passes, max_bypasses - request["num_bypasses"])
            elif ledger.spend(request, request["num_new_blocks"]):
                ledger.places -= 1
                passes -= 1
