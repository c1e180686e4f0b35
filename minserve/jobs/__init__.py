"""Durable asynchronous jobs: accepted once, delivered at least once, effective once.

job.py        what a job is, its states, what its kind promises: plain data
schema.py     the tables, and the migrations that make them
store.py      the job store, of these parts:
  database.py   transactions and one clock: SQLite, or PostgreSQL shared by many
  rows.py       rows of jobs, and the conditions that statements share
  intake.py     accepting: idempotency keys, bounds, each job's turn
  claims.py     leases and fencing tokens; what time makes of them
  outcomes.py   results with their effects ledger, failures, dead letters
  desk.py       looking at jobs, cancelling, redriving
handler.py    what a handler may ask of the job it works on
worker.py     runs handlers in child processes and renews their leases
kinds.py      the kinds of job that minserve itself knows
batches.py    JSONL files of requests, a job for each line
"""
