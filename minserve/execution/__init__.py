"""Executors turn a step plan into tokens: one computes them, one simulates their cost."""
