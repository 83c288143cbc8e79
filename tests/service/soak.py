"""Many queries without faults: memory and open files of each process must not grow.

``python -m tests.service.soak --queries 100000`` runs a broker and eight providers, and prints the
resident memory and the open files of each after a tenth of the queries, and at the end.
"""

import argparse
import json
import os
import random
import sys
import tempfile
import threading
from pathlib import Path

from tests.service.chaos import ALGORITHMS, POINTS, Service, ask

N_USERS = 8
MAX_GROWTH = 1.1  # largest growth of memory after the first tenth


def measure(process):
    """Return resident mebibytes and the number of open files."""
    status = Path(f"/proc/{process.pid}/status").read_text()
    n_kib = int(status.partition("VmRSS:")[2].split()[0])
    return round(n_kib / 1024, 1), len(os.listdir(f"/proc/{process.pid}/fd"))


def search(service, seed, n_queries, failed):
    """Run queries one after the other."""
    rng = random.Random(seed)
    clients = [service.client(algorithm) for algorithm in ALGORITHMS]
    for _ in range(n_queries):
        query = POINTS[rng.randrange(len(POINTS))] + rng.choice([0.0, 0.005])
        outcome, _ = ask(rng.choice(clients), query, rng.choice([1, 10, 60]))
        failed += [outcome] if outcome else []
    for client in clients:
        client.close()


def run(service, n_queries, seed, failed):
    """Run queries of all users at the same time."""
    users = [
        threading.Thread(target=search, args=(service, seed + user, n_queries // N_USERS, failed))
        for user in range(N_USERS)
    ]
    for user in users:
        user.start()
    for user in users:
        user.join()


def main(n_queries):
    """Return what was measured, and whether it is flat."""
    failed = []
    with tempfile.TemporaryDirectory() as folder:
        service = Service(Path(folder))
        try:
            run(service, n_queries // 10, 0, failed)
            before = {name: measure(one) for name, one in service.processes.items()}
            run(service, n_queries - n_queries // 10, 100, failed)
            after = {name: measure(one) for name, one in service.processes.items()}
        finally:
            service.close()
    is_flat = all(
        after[name][0] <= MAX_GROWTH * before[name][0] and after[name][1] <= before[name][1] + 2
        for name in before
    )
    table = {name: {"first": before[name], "last": after[name]} for name in before}
    return {"queries": n_queries, "failed": failed, "MiB, files": table, "is_flat": is_flat}


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--queries", type=int, default=100_000)
    found = main(parser.parse_args().queries)
    print(json.dumps(found, indent=1))
    sys.exit(bool(found["failed"]) or not found["is_flat"])
