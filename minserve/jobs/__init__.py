"""Durable asynchronous jobs: accepted once, delivered at least once, effective once.

job.py       what a job is, its states, what its kind promises: plain data
schema.py    the tables, and the migrations that make them
store.py     every change of state, each one transaction: SQLite, or PostgreSQL shared by many
handler.py   what a handler may ask of the job it works on
worker.py    runs handlers in child processes and renews their leases
kinds.py     the kinds of job that minserve itself knows
"""
