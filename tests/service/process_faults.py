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
import contextlib
import itertools
import json
import multiprocessing
import os
import signal
import ssl
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import httpx

from tests.service.faults import (
    ALGORITHMS,
    BYTE_FAULTS,
    DELAY_S,
    HONEST,
    OWNERS,
    PARTIAL,
    RECOVERY_S,
    START_S,
    UNREACHABLE,
    Case,
    Message,
    all_messages,
    is_right,
    run_cases,
)
from tests.service.host_faults import HostCampaign
from tests.service.hosts import serve

KINDS = ("kill", "pause", "stop", "freeze")  # a pause ends before the deadline
FREEZE_S = 4.0  # links are closed after 3 s without a heartbeat
QUERIES = (*ALGORITHMS, PARTIAL, "baseline, partial")
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
    message: Message


def all_faults(targets=tuple(PLACES), kinds=(*KINDS, *BYTE_FAULTS)):
    """Yield every fault of the processes, and of bytes between users and the broker."""
    for target, kind in itertools.product(targets, kinds):
        if (kind in BYTE_FAULTS) == (target == "bytes"):
            for message in all_messages(PLACES[target]):
                yield ProcessFault(kind, target, message)


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

    deadline_s = 1.0

    def __init__(self, folder, interpreters="forked"):
        method = "spawn" if interpreters == "new" else "forkserver"
        self._context = multiprocessing.get_context(method)
        self._context.set_forkserver_preload(["tests.service.hosts"])
        self._supervisor, self._restarts = ThreadPoolExecutor(1), []
        super().__init__(folder, has_disks=False)

    def _start(self, name):
        port = self.relays.ports["provider"] if name == "north" else self.port
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
        name = {"provider": "north", "bytes": "broker"}.get(fault.target, fault.target)
        pid = self.processes[name].pid

        def act():
            if fault.target != "bytes":
                os.kill(pid, signal.SIGKILL if fault.kind == "kill" else signal.SIGSTOP)
            if fault.kind == "kill" and name != "client":
                self._restarts.append(self._supervisor.submit(self._restart, name))
            if fault.kind == "pause":
                self.relays.loop.call_later(DELAY_S, continue_process, pid)

        kind = fault.kind if fault.target == "bytes" else "act"
        with self.relays.armed(fault.message, act, kind) as hit:
            try:
                yield hit
            finally:
                if hit.is_set() and fault.kind in ("stop", "freeze"):
                    time.sleep(FREEZE_S if fault.kind == "freeze" else 0)
                    continue_process(pid)

    def _ask_here(self, fault, algorithm, query):
        """Run the query of a user that is not hit."""
        with self._armed(fault) as hit:
            outcome, party, *times = self._measure(algorithm, query, fault.message.link)
        if outcome in HONEST and hit.is_set():
            assert party == "north", f"{outcome} of {party}"
        return Case([outcome], hit.is_set(), *times)

    def _measure(self, algorithm, query, link=None):
        """Run a query; return what _ask does, its seconds, and the delay of the machine."""
        self.relays.delay.take()
        started = time.monotonic()
        found = self._ask(algorithm, query, link)
        return *found, time.monotonic() - started, self.relays.delay.take()

    def _ask_in_process(self, fault, algorithm, query):
        """Run the query of a user whose process is hit, and those of others meanwhile."""
        key = {"Idempotency-Key": f"{fault} {algorithm}"}
        headers = {**key, "Authorization": f"Bearer {self.token}"}
        url = f"https://127.0.0.1:{self.relays.ports['user']}"
        request = url, str(self.certificate), self._request(algorithm, query), headers
        ours, theirs = self._context.Pipe()
        process = self._context.Process(target=ask_when_told, args=(theirs, request), daemon=True)
        process.start()
        self.processes["client"] = process
        try:
            theirs.close()
            assert ours.recv() == "ready"
            with self._armed(fault) as hit:
                ours.send("go")
                end = time.monotonic() + 2 * self.deadline_s
                while not ours.poll(0.01) and not hit.is_set():
                    assert time.monotonic() < end, "no answer, and no fault"
                # a query of another user; the same one if it is charged
                other = query if algorithm == "dann*" else self._next_query()
                outcome, _, *times = self._measure(algorithm, other)
                case = Case([outcome], hit.is_set(), *times)
                with self._http() as http:
                    again = self._post(http, algorithm, query, **key)
                assert again.status_code == 200, f"{again.text} at the repetition"
                assert self._check(again.json(), query) == "exact"
            if fault.kind != "kill" or not case.is_hit:
                status, content = ours.recv()
                assert status == 200, content
                assert self._check(content, query) == "exact"
            return case
        finally:
            process.kill()
            process.join()
            del self.processes["client"]

    def _request(self, algorithm, query):
        path, body = super()._request(algorithm.partition(",")[0], query)
        is_partial = "partial" in algorithm
        return path, {**body, "allow_partial": is_partial}

    def _wait_for_idle(self):
        """Wait until the broker runs no query."""
        end = time.monotonic() + RECOVERY_S
        with self._http() as http:
            while "fedneighbors_queries_running 0.0" not in http.get("/metrics").text:
                assert time.monotonic() < end, "a query still runs"


def main(targets=tuple(PLACES), kinds=(*KINDS, *BYTE_FAULTS), interpreters="forked"):
    """Run all faults of processes with every algorithm; return a summary."""
    return run_cases(
        list(itertools.product(all_faults(targets, kinds), QUERIES)),
        lambda folder: ProcessCampaign(folder, interpreters),
        lambda fault: f"{fault.kind} {fault.target}",
    )


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
    sys.exit(not is_right(found))
