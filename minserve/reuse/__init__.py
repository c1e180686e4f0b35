"""Answers reused safely: an exact cache, a semantic one, and what must hold before either serves.

Knows `minserve.request` (who asks) and nothing of the engine.
"""
