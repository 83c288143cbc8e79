"""Processes of a service that are killed and stopped at random while users search.

``python -m tests.service.chaos --minutes 60`` runs a broker and eight providers. A killed process
is started again at once, as a service manager does; a stopped one continues after some seconds. A
user repeats a query with an error that may pass, for at most 15 seconds. Prints a summary as JSON.
"""

import argparse
import asyncio
import json
import multiprocessing
import os
import random
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path

import numpy as np

from fedneighbors.errors import FederationError
from fedneighbors.secure_sum._keys import Identity
from fedneighbors.service import RemoteNeighbors, ServiceError
from fedneighbors.service._config import BrokerConfig
from fedneighbors.service._provider import ProviderService
from fedneighbors.service._server import add_local_provider, run_broker
from fedneighbors.service._state import open_state
from tests.service.deployment import offered
from tests.service.test_processes import free_port

PROVIDERS = tuple(f"provider-{number}" for number in range(8))
POINTS = np.random.default_rng(0).normal(size=(8000, 3)).round(2)
ALGORITHMS = ("baseline", "dann", "eager", "hufu+", "auto")
PATIENCE_S, MAX_STOP_S = 15.0, 5.0


def make_config(folder, port):
    section = {"metric": "euclidean", "providers": PROVIDERS, "tie_key": "0"}
    return BrokerConfig.model_validate(
        {
            "format": 1,
            "folder": folder,
            "server": {"listen": f"127.0.0.1:{port}"},
            "collections": {"points": section},
        }
    )


def serve_broker(folder, port):
    asyncio.run(run_broker(make_config(folder, port), lambda *_: None))


def serve_provider(name, private, url, certificate):
    number = PROVIDERS.index(name)
    rows = np.arange(number, len(POINTS), len(PROVIDERS))
    ids = [str(row) for row in rows]
    offer = offered(name, "points", "euclidean", POINTS[rows], ids=ids, tie_key="0")
    service = ProviderService(name, Identity(private), {"points": offer})
    asyncio.run(service.run(url, certificate))


class Service:
    """The processes of a broker and its providers."""

    def __init__(self, folder):
        self.port = free_port()
        self.url = f"https://127.0.0.1:{self.port}"
        state, _ = open_state(make_config(folder, self.port))
        self.certificate = folder / "state/server.crt"
        self.token = state.new_token("users", 1)
        text = self.certificate.read_text("ascii")
        self._arguments = {"broker": (serve_broker, folder, self.port)}
        for name in PROVIDERS:
            identity = Identity.new()
            add_local_provider(state, name, identity)
            self._arguments[name] = serve_provider, name, identity.private, self.url, text
        state.close()
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(["tests.service.deployment"])
        self.processes = {}
        for name in self._arguments:
            self.start(name)

    def start(self, name):
        target, *arguments = self._arguments[name]
        process = self._context.Process(target=target, args=arguments, daemon=True)
        process.start()
        self.processes[name] = process

    def kill(self, name):
        self.processes[name].kill()
        self.processes[name].join()
        self.start(name)

    def stop(self, name, seconds):
        pid = self.processes[name].pid
        os.kill(pid, signal.SIGSTOP)
        time.sleep(seconds)
        os.kill(pid, signal.SIGCONT)

    def close(self):
        for process in self.processes.values():
            process.kill()
            process.join()

    def client(self, algorithm):
        return RemoteNeighbors(
            self.url,
            collection="points",
            token=self.token,
            certificate=self.certificate,
            algorithm=algorithm,
            deadline_s=3.0,
        )


def ask(client, query, k):
    """Return the error after the last attempt, empty for the right answer, and all errors."""
    errors, end = [], time.monotonic() + PATIENCE_S
    while True:
        try:
            distances, objects = client.kneighbors([query], k)
        except ServiceError as error:
            errors.append(error.code)
            is_over = not error.retryable
        except FederationError:
            errors.append("no broker")
            is_over = False
        else:
            all_distances = np.sqrt(((POINTS - query) ** 2).sum(axis=1))
            expected = np.sort(all_distances)[:k]
            found = [all_distances[int(one.id)] for one in objects[0]]
            is_right = np.allclose(distances[0], expected, rtol=1e-12) and np.allclose(
                found, expected, rtol=1e-12
            )
            return "" if is_right and len(set(objects[0])) == k else "wrong", errors
        if is_over or time.monotonic() > end:
            return errors[-1], errors
        time.sleep(0.2)


def search_until(service, end, seed, summary):
    """Search until a time; count outcomes."""
    rng = random.Random(seed)
    clients = [service.client(algorithm) for algorithm in ALGORITHMS]
    while time.monotonic() < end:
        time.sleep(rng.uniform(0.0, 0.2))
        query = POINTS[rng.randrange(len(POINTS))] + rng.choice([0.0, 0.005])
        outcome, errors = ask(rng.choice(clients), query, rng.choice([1, 10, 60]))
        with summary.lock:
            summary.n_queries += 1
            summary.failed += Counter([outcome] if outcome else [])
            summary.errors += Counter(errors)


class Summary:
    """Outcomes of the queries of users."""

    def __init__(self):
        self.lock = threading.Lock()
        self.n_queries, self.failed, self.errors, self.faults = 0, Counter(), Counter(), Counter()

    def describe(self):
        """Return the summary as JSON."""
        n_failed = sum(self.failed.values())
        return {
            "queries": self.n_queries,
            "answered": 1 - n_failed / max(self.n_queries, 1),
            "wrong": self.failed["wrong"],
            "failed": dict(self.failed),
            "errors before an answer": dict(self.errors),
            "faults": dict(self.faults),
        }


def main(minutes, seed=0, n_users=4):
    """Run the service with faults; return a summary."""
    rng, summary = random.Random(seed), Summary()
    with tempfile.TemporaryDirectory() as folder:
        service = Service(Path(folder))
        try:
            outcome, _ = ask(service.client("baseline"), POINTS[0], 5)  # all are connected
            assert outcome == "", outcome
            end = time.monotonic() + 60 * minutes
            users = [
                threading.Thread(target=search_until, args=(service, end, number, summary))
                for number in range(n_users)
            ]
            for user in users:
                user.start()
            while time.monotonic() < end - MAX_STOP_S:
                time.sleep(rng.uniform(0.5, 5.0))
                name = rng.choice([*PROVIDERS, "broker"])
                kind = rng.choice(["kill", "stop"])
                summary.faults[f"{kind} {name.partition('-')[0]}"] += 1
                if kind == "kill":
                    service.kill(name)
                else:
                    service.stop(name, rng.uniform(0.2, MAX_STOP_S))
            for user in users:
                user.join()
        finally:
            service.close()
    return summary.describe()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    found = main(options.minutes, options.seed)
    print(json.dumps(found, indent=1))
    sys.exit(found["answered"] < 0.999 or found["wrong"] > 0)
