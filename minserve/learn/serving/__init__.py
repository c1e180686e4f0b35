"""A learner's parts in a real server: put in, watched, and replaced when they fail.

`install` puts them in; `engine`, `loops` and `pool` let them serve; `guard` outlives whatever they
do; `shelf` knows whose part runs, `ledger` which parts a request went through.
"""
