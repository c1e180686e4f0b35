"""Engines on a virtual clock: any number of replicas of the real scheduler, at calibrated costs.

The scheduler, the policies and the caches are the ones that serve; only a step's duration comes
from a cost model (as in Vidur, Agrawal et al., 2024). A client of `Fleet` sees an `EngineClient`
like any other, so the load generator and its report are those of a real server too.
"""
