"""Which engine answers: the cheapest that does it well (cascade), and a second one in time (hedging)."""
