"""Who runs in the next step: policies decide, the scheduler carries it out."""
