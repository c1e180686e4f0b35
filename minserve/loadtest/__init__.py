"""Load testing that tells the truth: arrivals, traffic, a generator, measures, and a report."""
