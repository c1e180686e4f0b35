"""Comparisons with other engines: same weights, same work, one process each, side by side."""
