"""Which engine answers: the cheapest that does it well (cascade), or a second in time (hedging)."""
