"""Processes that are killed or stopped at every message of a query.

A relay acts when the n-th message of one direction passes, between the provider ``north`` and the
broker, or between a user and the broker. It kills the provider, the broker or the user's process,
or stops it for a moment, beyond the deadline, or beyond the heartbeats of links; or it changes the
bytes between user and broker. A killed server is started again at once, as a service manager does:
in a fork of a process that has loaded the code or, with ``--interpreters new``, in an interpreter.
``python -m tests.service.process_faults`` runs all cases, or those of ``--target`` and ``--kind``,
and prints a summary as JSON.
"""

import argparse
import asyncio
import contextlib
import itertools
import json
import multiprocessing
import os
import signal
import ssl
import sys
import tempfile
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import httpx

from fedneighbors.service import BrokerUnreachable, RemoteNeighbors, ServiceError
from tests.service.faults import (
    ALGORITHMS,
    BYTE_FAULTS,
    DELAY_S,
    DIRECTIONS,
    HONEST,
    LATE_S,
    OWNERS,
    PARTIAL,
    RECOVERY_S,
    START_S,
    UNREACHABLE,
    Fault,
    FaultyRelay,
    LoopDelay,
)
from tests.service.host_faults import HostCampaign, serve

DEADLINE_S = 1.0
KINDS = ("kill", "pause", "stop", "freeze")  # a pause ends before the deadline
FREEZE_S = 4.0  # links are closed after 3 s without a heartbeat
QUERIES = (*ALGORITHMS, PARTIAL, "baseline, partial")
N_POSITIONS = {"provider": 5, "user": 4}  # messages of each direction, by link
PLACES = {
    "provider": ("provider",),
    "broker": ("provider", "user"),
    "client": ("user",),
    "bytes": ("user",),
}
"""Links at whose messages each process is hit, or bytes are."""

OUTCOMES = {"exact", "partial", UNREACHABLE, *HONEST}


@dataclass(frozen=True)
class ProcessFault:
    """A process that is killed or stopped at a message of a link."""

    kind: str
    target: str
    link: str
    direction: str
    position: int


def all_faults(targets=tuple(PLACES), kinds=(*KINDS, *BYTE_FAULTS)):
    """Yield every fault of the processes, and of bytes between users and the broker."""
    for target, kind, direction in itertools.product(targets, kinds, DIRECTIONS):
        if (kind in BYTE_FAULTS) == (target == "bytes"):
            for link in PLACES[target]:
                for position in range(N_POSITIONS[link]):
                    yield ProcessFault(kind, target, link, direction, position)


@dataclass
class Case:
    """The course of a query with a fault.

    ``seconds`` are those of the user's query; ``delay_s`` is by how much the machine was late
    meanwhile. ``recovery_s`` runs from the end of the fault to the right answer.
    """

    outcome: str
    is_hit: bool
    seconds: float
    delay_s: float
    recovery_s: float = 0.0


def serve_quietly(name, folder, port):
    """Run the broker or a provider with its messages in a file."""
    with (folder / f"{name}.err").open("a") as file:
        os.dup2(file.fileno(), 2)
        serve(name, folder, port)


def ask_when_told(pipe, request):
    """Send a query of a user, and its answer to the campaign."""
    url, certificate, (path, body), headers = request
    context = ssl.create_default_context(cafile=certificate)
    with httpx.Client(base_url=url, headers=headers, verify=context, timeout=60) as http:
        pipe.send("ready")
        pipe.recv()
        try:
            response = http.post(path, json=body)
            pipe.send((response.status_code, response.json()))
        except httpx.TransportError as error:
            pipe.send((0, type(error).__name__))


def continue_process(pid):
    """Let a stopped process continue, if it still exists."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGCONT)


class ProcessCampaign(HostCampaign):
    """Processes of a service that are hit at messages of queries."""

    def __init__(self, folder, interpreters="forked"):
        method = "spawn" if interpreters == "new" else "forkserver"
        self._context = multiprocessing.get_context(method)
        self._context.set_forkserver_preload(["tests.service.host_faults"])
        self._loop, self._relays = asyncio.new_event_loop(), {}
        self._delay, self._hit = LoopDelay(), threading.Event()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._watch = asyncio.run_coroutine_threadsafe(self._delay.run(), self._loop)
        self._supervisor, self._restarts = ThreadPoolExecutor(1), []
        super().__init__(folder, has_disks=False)

    def _start(self, name):
        if not self._relays:
            for link in N_POSITIONS:
                relay = FaultyRelay(f"https://127.0.0.1:{self.port}")
                started = asyncio.run_coroutine_threadsafe(relay.start(), self._loop)
                self._relays[link] = relay, int(started.result(START_S).rpartition(":")[2])
        port = self._relays["provider"][1] if name == "north" else self.port
        process = self._context.Process(
            target=serve_quietly, args=(name, self.folder, port), daemon=True
        )
        process.start()
        self.processes[name] = process

    def _restart(self, name):
        self.processes[name].join()
        self._start(name)

    def close(self):
        """End all processes."""
        for process in self.processes.values():
            process.kill()
            process.join()
        self._supervisor.shutdown()
        self._watch.cancel()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(START_S)
        super().close()

    def run(self, fault, algorithm):
        """Run a query with a fault; return its case, or raise AssertionError."""
        charged, query = self._count_charges(), self._next_query()
        act = self._ask_in_process if fault.target == "client" else self._ask_here
        case = act(fault, algorithm, query)
        for restart in self._restarts:
            restart.result(START_S)
        self._restarts.clear()
        assert case.outcome in OUTCOMES, case.outcome
        assert case.outcome != "partial" or "partial" in algorithm
        if algorithm == "dann*" and case.outcome == "exact":
            assert self._count_charges() - charged == len(OWNERS), "no entry before the answer"
        case.recovery_s = self._recover(algorithm, query, 3 * RECOVERY_S)
        self._wait_for_idle()
        if algorithm == "dann*":
            n_charges = self._count_charges() - charged
            assert n_charges == len(OWNERS), f"{n_charges} charges for one query"
        self._check_logs()
        return case

    @contextlib.contextmanager
    def _armed(self, fault):
        """Let a fault hit during the block; a stopped process continues at its end."""
        relay, _ = self._relays[fault.link]
        name = {"provider": "north", "bytes": "broker"}.get(fault.target, fault.target)
        pid = self.processes[name].pid
        self._hit.clear()

        def act():
            if fault.target != "bytes":
                os.kill(pid, signal.SIGKILL if fault.kind == "kill" else signal.SIGSTOP)
            if fault.kind == "kill" and name != "client":
                self._restarts.append(self._supervisor.submit(self._restart, name))
            if fault.kind == "pause":
                self._loop.call_later(DELAY_S, continue_process, pid)
            self._hit.set()

        relay.act = act
        kind = fault.kind if fault.target == "bytes" else "act"
        relay.arm(Fault("bytes", kind, fault.direction, fault.position))
        try:
            yield
        finally:
            relay.arm(None)
            if self._hit.is_set() and fault.kind in ("stop", "freeze"):
                time.sleep(FREEZE_S if fault.kind == "freeze" else 0)
                continue_process(pid)

    def _ask_here(self, fault, algorithm, query):
        """Run the query of a user that is not hit."""
        port = self._relays["user"][1] if fault.link == "user" else self.port
        with self._client(algorithm, port) as client, self._armed(fault):
            self._delay.take()
            started = time.monotonic()
            outcome, party = self._search(client, query)
            seconds = time.monotonic() - started
        if outcome in HONEST and self._hit.is_set():
            assert party == "north", f"{outcome} of {party}"
        return Case(outcome, self._hit.is_set(), seconds, self._delay.take())

    def _ask_in_process(self, fault, algorithm, query):
        """Run the query of a user whose process is hit, and those of others meanwhile."""
        key = {"Idempotency-Key": f"{fault} {algorithm}"}
        headers = {**key, "Authorization": f"Bearer {self.token}"}
        url = f"https://127.0.0.1:{self._relays['user'][1]}"
        request = url, str(self.certificate), self._request(algorithm, query), headers
        ours, theirs = self._context.Pipe()
        process = self._context.Process(target=ask_when_told, args=(theirs, request), daemon=True)
        process.start()
        self.processes["client"] = process
        try:
            theirs.close()
            assert ours.recv() == "ready"
            with self._armed(fault):
                ours.send("go")
                end = time.monotonic() + 2 * DEADLINE_S
                while not ours.poll(0.01) and not self._hit.is_set():
                    assert time.monotonic() < end, "no answer, and no fault"
                case = self._ask_meanwhile(algorithm, query)
                with self._http() as http:
                    again = self._read(self._post(http, algorithm, query, **key), query)
                assert again == "exact", f"{again} at the repetition"
            if fault.kind != "kill" or not case.is_hit:
                status, content = ours.recv()
                assert status == 200, content
                assert self._check(content, query) == "exact"
            return case
        finally:
            process.kill()
            process.join()
            del self.processes["client"]

    def _ask_meanwhile(self, algorithm, query):
        """Run a query of another user; the same one if it is charged."""
        other = query if algorithm == "dann*" else self._next_query()
        with self._client(algorithm, self.port) as client:
            self._delay.take()
            started = time.monotonic()
            outcome, _ = self._search(client, other)
            seconds = time.monotonic() - started
        return Case(outcome, self._hit.is_set(), seconds, self._delay.take())

    def _request(self, algorithm, query):
        path, body = super()._request(algorithm.partition(",")[0], query)
        is_partial = "partial" in algorithm
        return path, {**body, "deadline_s": DEADLINE_S, "allow_partial": is_partial}

    def _client(self, algorithm, port):
        name, _, partial = algorithm.partition(",")
        options = {} if name == "dann*" else {"algorithm": name}
        return RemoteNeighbors(
            f"https://127.0.0.1:{port}",
            collection="private" if name == "dann*" else "points",
            token=self.token,
            certificate=self.certificate,
            deadline_s=DEADLINE_S,
            allow_partial=bool(partial),
            **options,
        )

    def _search(self, client, query):
        """Return the outcome of a query, and the provider that an error names."""
        try:
            client.kneighbors([[query]], 5)
        except ServiceError as error:
            return error.code, error.party
        except BrokerUnreachable:
            return UNREACHABLE, None
        return self._check(client.results_[0], query), None

    def _ask(self, algorithm, query):
        with self._client(algorithm, self.port) as client:
            return self._search(client, query)[0]

    def _wait_for_idle(self):
        """Wait until the broker runs no query."""
        end = time.monotonic() + RECOVERY_S
        with self._http() as http:
            while "fedneighbors_queries_running 0.0" not in http.get("/metrics").text:
                assert time.monotonic() < end, "a query still runs"


def main(targets=tuple(PLACES), kinds=(*KINDS, *BYTE_FAULTS), interpreters="forked"):
    """Run all faults of processes with every algorithm; return a summary."""
    outcomes, failed, late, recoveries, delays = Counter(), [], [], [0.0], [0.0]
    n_messages = Counter()
    cases = list(itertools.product(all_faults(targets, kinds), QUERIES))
    with tempfile.TemporaryDirectory() as folder:
        campaign = ProcessCampaign(Path(folder), interpreters)
        try:
            for number, (fault, algorithm) in enumerate(cases):
                try:
                    case = campaign.run(fault, algorithm)
                except AssertionError as error:
                    failed.append([algorithm, str(fault), str(error)])
                    continue
                what = f"{fault.kind} {fault.target}" if case.is_hit else "no such message"
                outcomes[f"{what}: {case.outcome}"] += 1
                if case.is_hit:
                    place = f"{fault.link} {fault.direction}"
                    n_messages[place] = max(n_messages[place], fault.position + 1)
                recoveries.append(case.recovery_s)
                delays.append(case.delay_s)
                if case.seconds > DEADLINE_S + LATE_S:
                    times = round(case.seconds, 3), round(case.delay_s, 3)
                    late.append([algorithm, str(fault), case.outcome, *times])
                if sys.stderr.isatty():
                    print(f"\r{number + 1} of {len(cases)}", end="", file=sys.stderr)
        finally:
            campaign.close()
    return {
        "cases": len(cases),
        "outcomes": dict(sorted(outcomes.items())),
        "messages": n_messages,
        "failed": failed,
        "late: seconds, delay of the machine": late,
        "longest recovery (s)": round(max(recoveries), 2),
        "longest delay of the machine (s)": round(max(delays), 3),
        "load": os.getloadavg(),
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--target", choices=PLACES)
    parser.add_argument("--kind", choices=[*KINDS, *BYTE_FAULTS])
    parser.add_argument("--interpreters", choices=["forked", "new"], default="forked")
    options = parser.parse_args()
    targets = (options.target,) if options.target else tuple(PLACES)
    kinds = (options.kind,) if options.kind else (*KINDS, *BYTE_FAULTS)
    found = main(targets, kinds, options.interpreters)
    print(json.dumps(found, indent=1))
    sys.exit(bool(found["failed"]) or found["longest recovery (s)"] > RECOVERY_S)
