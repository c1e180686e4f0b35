"""Huey and procrastinate at the work that `minserve bench jobs` measures.

Run by the Python of an environment that has them; imports nothing of minserve. The last line is
JSON: jobs per second accepted one at a time, and worked off.

    python bench_jobs_peers.py huey FOLDER NUM_JOBS CONCURRENCY
    python bench_jobs_peers.py procrastinate URL NUM_JOBS CONCURRENCY
"""

import json
import sys
import threading
import time


def huey(folder: str, num_jobs: int, concurrency: int) -> dict:
    """SQLite with an fsync at each commit, results kept, as threads of one consumer."""
    from huey import SqliteHuey

    queue = SqliteHuey("bench", filename=f"{folder}/huey.db", fsync=True)

    @queue.task()
    def nap(number):
        return number

    began_s = time.perf_counter()
    for number in range(num_jobs):
        nap(number)
    enqueued_s = time.perf_counter()
    consumer = queue.create_consumer(
        workers=concurrency, periodic=False, initial_delay=0.001, max_delay=0.01
    )
    threading.Thread(target=consumer.start, daemon=True).start()
    while queue.result_count() < num_jobs:
        time.sleep(0.02)
    ended_s = time.perf_counter()
    consumer.stop()
    return figures(num_jobs, began_s, enqueued_s, ended_s)


def procrastinate(url: str, num_jobs: int, concurrency: int) -> dict:
    """PostgreSQL, a commit for each fetch and each finish, as coroutines of one worker."""
    import procrastinate as library

    app = library.App(connector=library.SyncPsycopgConnector(conninfo=url))

    @app.task(name="nap")
    async def nap(number):
        return number

    with app.open():
        app.schema_manager.apply_schema()
        began_s = time.perf_counter()
        for number in range(num_jobs):
            nap.defer(number=number)
        enqueued_s = time.perf_counter()
    working = app.with_connector(library.PsycopgConnector(conninfo=url))
    started_s = time.perf_counter()
    working.run_worker(concurrency=concurrency, wait=False, listen_notify=False)
    ended_s = time.perf_counter()
    return figures(num_jobs, began_s, enqueued_s, enqueued_s + ended_s - started_s)


def figures(num_jobs: int, began_s: float, enqueued_s: float, ended_s: float) -> dict:
    """Rates per second."""
    return {
        "enqueued_per_s": num_jobs / (enqueued_s - began_s),
        "worked_per_s": num_jobs / (ended_s - enqueued_s),
        "jobs_per_s": num_jobs / (ended_s - began_s),
    }


if __name__ == "__main__":
    name, where, num_jobs, concurrency = sys.argv[1:]
    peer = {"huey": huey, "procrastinate": procrastinate}[name]
    print(json.dumps(peer(where, int(num_jobs), int(concurrency))))
