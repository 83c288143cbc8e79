"""Faults of machines and of users: full disks, changed clocks, bad clients.

A broker and two providers run as processes, and a user whose clock is changed. A full disk is a
real one where this process may mount a small file system, and a limit on the size of files
everywhere; clocks are changed by libfaketime. ``python -m tests.service.host_faults`` runs each
fault with each algorithm; with ``--at-messages``, full disks and changed clocks begin when the n-th
message of one direction passes, between the provider ``north`` and the broker, or between a user
and the broker. It prints a summary as JSON.
"""

import argparse
import contextlib
import itertools
import json
import multiprocessing
import os
import random
import resource
import signal
import socket
import sqlite3
import ssl
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass, replace
from pathlib import Path

import httpx

from fedneighbors.privacy.ledger._ledger import Ledger
from fedneighbors.secure_sum._keys import Identity
from fedneighbors.service import RemoteNeighbors
from fedneighbors.service._access_log import AccessLog
from fedneighbors.service._server import add_local_provider
from fedneighbors.service._state import open_state
from tests.service.faults import (
    ALGORITHMS,
    OWNERS,
    RECOVERY_S,
    START_S,
    Case,
    Message,
    Relays,
    all_messages,
    check_answer,
    is_right,
    run_cases,
    search,
)
from tests.service.hosts import make_config
from tests.service.test_processes import free_port

FAKETIME = [*map(str, Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1"))]
DAY = {"a day later": 1, "a day earlier": -1}
CLIENT_FAULTS = ("killed", "stopped", "cut", "half", "garbage", "repeated", "at once")
ROOM_KIB = 32_768  # the write-ahead logs of SQLite take 4 MiB each
# codes that name the hop, and may be repeated
TYPED = {"log-failed", "ledger-failed", "provider-missing", "provider-restarted", "state-failed"}


@dataclass(frozen=True)
class HostFault:
    """A fault of one process or machine."""

    kind: str
    place: str
    detail: str
    message: Message | None = None  # at which it begins; otherwise before the queries


def all_faults(*, has_disks, at_messages=False):
    """Return the faults that this machine can have."""
    found = [HostFault("full", place, "limit") for place in ("broker", "north")]
    if has_disks:
        found += [HostFault("full", place, "disk") for place in ("state", "ledger", "north")]
    if FAKETIME:
        places = ("broker", "north", "client")
        found += [HostFault("clock", place, day) for place in places for day in DAY]
    if at_messages:
        return [replace(one, message=passed) for one in found for passed in all_messages()]
    return found + [HostFault("client", "client", kind) for kind in CLIENT_FAULTS]


def can_mount():
    """Return whether this process may mount a file system."""
    with tempfile.TemporaryDirectory() as folder:
        return _mount(folder) and _unmount(folder)


def _mount(folder):
    options = ["-t", "tmpfs", "-o", f"size={ROOM_KIB}k", "tmpfs", str(folder)]
    return subprocess.run(["mount", *options], capture_output=True, check=False).returncode == 0


def _unmount(folder):
    return subprocess.run(["umount", "-l", str(folder)], check=False).returncode == 0


class HostCampaign:
    """Processes of a service, and queries of users during faults."""

    deadline_s = 2.0

    def __init__(self, folder, *, has_disks):
        self.folder, self.port = folder, free_port()
        self._stack = contextlib.ExitStack()
        for name in ("state", "ledger", *OWNERS):
            (folder / name).mkdir()
            if has_disks:
                assert _mount(folder / name)
                self._stack.callback(_unmount, folder / name)
        state, _ = open_state(make_config(folder, self.port))
        self.token = state.new_token("users", 30, ("search", "metrics"))
        for name in OWNERS:
            identity = Identity.new()
            identity.write(folder / name / "key.pem")
            add_local_provider(state, name, identity)
        state.close()
        self.certificate = folder / "state/server.crt"
        self.processes, self._queries = {}, itertools.count()
        self.relays = Relays(self.port)
        self._stack.callback(self.relays.close)
        try:
            for name in ("broker", *OWNERS):
                self._start(name)
            self._recover("baseline", self._next_query(), START_S)
        except BaseException:
            self.close()
            raise

    def _start(self, name):
        self._set_clock(name, 0)
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        if FAKETIME:
            environment |= {
                "LD_PRELOAD": FAKETIME[0],
                "FAKETIME_TIMESTAMP_FILE": str(self.folder / f"{name}.clock"),
                "FAKETIME_NO_CACHE": "1",  # the file is read each time
                "FAKETIME_DONT_FAKE_MONOTONIC": "1",
                "FAKETIME_FORCE_MONOTONIC_FIX": "0",  # it lets threads that wait spin
                "NO_FAKE_STAT": "1",  # compiled code is found by the times of its files
            }
        port = self.relays.ports["provider"] if name == "north" else self.port
        pipe = subprocess.PIPE if name == "client" else None
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.service.hosts", name, str(self.folder), str(port)],
            env=environment,
            stdin=pipe,
            stdout=pipe,
            stderr=(self.folder / f"{name}.err").open("w"),
            text=True,
        )
        self.processes[name] = process
        self._stack.callback(process.wait)
        self._stack.callback(process.kill)

    def close(self):
        """End all processes."""
        self._stack.close()

    def run(self, fault, algorithm):
        """Run queries during a fault and after it; return their course, or raise AssertionError."""
        is_apart = fault.place == "client" and fault.kind == "clock"
        if is_apart and "client" not in self.processes:
            self._start("client")
            self._ask("baseline", self._next_query(), is_apart=True)
        charged, outcomes, slowest = self._count_charges(), [], 0.0
        queries = [self._next_query() for _ in range(3)]
        if fault.detail == "disk":
            self._truncate(fault.place)
        self.relays.delay.take()
        with self._fault(fault, algorithm, queries[0]) as hit:
            for query in queries:
                link = fault.message.link if fault.message and not outcomes else None
                started = time.monotonic()
                outcome, party = self._ask(algorithm, query, link, is_apart=is_apart)
                slowest = max(slowest, time.monotonic() - started)
                outcomes.append(outcome)
                if outcome in TYPED:
                    hop = fault.place if fault.place in OWNERS else None
                    assert party == hop, f"{outcome} of {party}"
                if outcome == "exact" and algorithm == "dann*":
                    n_charges = self._count_charges() - charged
                    assert n_charges >= len(OWNERS), "no entry before the answer"
                if fault.message is not None:  # one of the first query
                    self.relays.disarm(fault.message.link)
                    if not hit.is_set():
                        break
            is_hit = fault.message is None or hit.is_set()
            if fault.kind == "clock" and is_hit:
                assert self._clock_of(fault.place) == DAY[fault.detail], "the clock is right"
        delay_s = self.relays.delay.take()
        assert set(outcomes) <= TYPED | {"exact"}, outcomes
        recovery_s = max(
            self._recover(algorithm, query, 3 * RECOVERY_S, is_apart=is_apart) for query in queries
        )
        if algorithm == "dann*":
            n_charges = self._count_charges() - charged
            expected = len(queries) * len(OWNERS)
            assert n_charges == expected, f"{n_charges} charges for {len(queries)} queries"
        self._check_logs()
        for name, process in self.processes.items():
            assert process.poll() is None, f"{name} has ended"
        return Case(outcomes, is_hit, slowest, delay_s, recovery_s)

    def _next_query(self):
        return 0.3 + next(self._queries) / 64

    def _recover(self, algorithm, query, limit_s, **options):
        """Repeat a query until its answer is right; return the seconds."""
        started = time.monotonic()
        while (outcome := self._ask(algorithm, query, **options)[0]) != "exact":
            assert time.monotonic() - started < limit_s, f"no recovery: {outcome}"
            time.sleep(0.05)
        return time.monotonic() - started

    def _ask(self, algorithm, query, link=None, *, is_apart=False):
        """Run a query here, or in a process of its own.

        Returns
        -------
        outcome : str
            "exact" or "partial" for a right answer, or the code of an error.
        party : str or None
            The provider that the error names.
        """
        options = self._options(algorithm, link)
        if is_apart:
            process = self.processes["client"]
            print(json.dumps([options, query]), file=process.stdin, flush=True)
            answer, code, party, self._client_time = json.loads(process.stdout.readline())
        else:
            with RemoteNeighbors(**options) as client:
                answer, code, party = search(client, query)
        return code or self._check(answer, query), party

    def _options(self, algorithm, link=None):
        """Return the arguments of a client, which is connected through a relay or not."""
        name, _, partial = algorithm.partition(",")
        port = self.port if link != "user" else self.relays.ports["user"]
        return {
            "url": f"https://127.0.0.1:{port}",
            "collection": "private" if name == "dann*" else "points",
            "token": self.token,
            "certificate": str(self.certificate),
            "deadline_s": self.deadline_s,
            "allow_partial": bool(partial),
            **({} if name == "dann*" else {"algorithm": name}),
        }

    def _http(self, token=None, port=None):
        context = ssl.create_default_context(cafile=str(self.certificate))
        headers = {"Authorization": f"Bearer {token or self.token}"}
        url = f"https://127.0.0.1:{port or self.port}"
        return httpx.Client(base_url=url, headers=headers, verify=context, timeout=60)

    def _post(self, http, algorithm, query, **headers):
        path, body = self._request(algorithm, query)
        return http.post(path, json=body, headers=headers)

    def _request(self, algorithm, query):
        """Return path and body of a search."""
        body = {"query": [query], "k": 5, "deadline_s": self.deadline_s}
        if algorithm == "dann*":
            return "/v1/collections/private/search", body
        return "/v1/collections/points/search", {**body, "algorithm": algorithm}

    def _check(self, answer, query):
        """Check an answer; return "exact", or "partial" if a provider is missing."""
        with contextlib.closing(AccessLog(self.folder / "state/log.sqlite")) as log:
            logged = {one["query"] for one in log.entries_of("users", 100)}
        assert answer["query_id"] in logged, "an answer without an entry in the log"
        return check_answer(answer, query)

    def _count_charges(self):
        with Ledger(self.folder / "ledger/private.sqlite", must_exist=True) as ledger:
            return sum(entry.kind == "released" for entry in ledger.entries())

    def _check_logs(self):
        """Check the digests of all logs."""
        for name in ("state", *OWNERS):
            with contextlib.closing(AccessLog(self.folder / name / "log.sqlite")) as log:
                assert log.verify() > 0

    # Faults

    def _fault(self, fault, algorithm, query):
        """Return a context in which a fault lasts."""
        if fault.message is not None:
            return self._begin_later(fault)
        if fault.kind == "full":
            return self._limit(fault.place) if fault.detail == "limit" else self._fill(fault.place)
        if fault.kind == "clock":
            return self._change_clock(fault.place, DAY[fault.detail])
        return self._bad_client(fault.detail, algorithm, query)

    @contextlib.contextmanager
    def _begin_later(self, fault):
        """Let a fault begin when its message passes; yield an event of it."""
        with contextlib.ExitStack() as stack:
            context = self._fault(replace(fault, message=None), "", 0.0)
            with self.relays.armed(fault.message, lambda: stack.enter_context(context)) as hit:
                yield hit

    @contextlib.contextmanager
    def _limit(self, place):
        """Let a process write no file."""
        pid = self.processes[place].pid
        old = resource.prlimit(pid, resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))
        try:
            yield
        finally:
            resource.prlimit(pid, resource.RLIMIT_FSIZE, old)

    def _truncate(self, place):
        """Empty SQLite's write-ahead log, in which there is room on a full disk."""
        for path in (self.folder / place).glob("*.sqlite"):
            with contextlib.closing(sqlite3.connect(path)) as connection:
                connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")

    @contextlib.contextmanager
    def _fill(self, place):
        """Fill the file system of a folder."""
        path = self.folder / place / "filler"
        with path.open("wb", buffering=0) as file:
            for n_bytes in (1 << 20, 4096):
                with contextlib.suppress(OSError):
                    while file.write(b"0" * n_bytes) == n_bytes:
                        pass
        try:
            yield
        finally:
            path.unlink()

    def _set_clock(self, place, n_days):
        path = self.folder / f"{place}.clock.new"
        path.write_text(f"{n_days:+d}d")
        path.replace(self.folder / f"{place}.clock")

    @contextlib.contextmanager
    def _change_clock(self, place, n_days):
        self._set_clock(place, n_days)
        try:
            yield
        finally:
            self._set_clock(place, 0)

    def _clock_of(self, place):
        """Return by how many days the clock of the latest query was ahead in a process."""
        if place == "client":
            return round((self._client_time - time.time()) / 86_400)
        path = self.folder / ("state" if place == "broker" else place) / "log.sqlite"
        with contextlib.closing(AccessLog(path)) as log:
            (entry,) = log.entries_of("users", 1)
        return round((entry["time"] - time.time()) / 86_400)

    @contextlib.contextmanager
    def _bad_client(self, kind, algorithm, query):
        """Let a bad client ask the first of a user's queries."""
        if kind in ("killed", "stopped"):
            context = multiprocessing.get_context("forkserver")
            ours, theirs = context.Pipe()
            arguments = theirs, self.port, self.certificate, self._raw(algorithm, query)
            process = context.Process(target=send_and_sleep, args=arguments, daemon=True)
            process.start()
            assert ours.recv() == "sent"
            os.kill(process.pid, signal.SIGSTOP if kind == "stopped" else signal.SIGKILL)
            try:
                yield
            finally:
                process.kill()
                process.join()
            return
        if kind in ("repeated", "at once"):
            self._repeat(algorithm, query, is_at_once=kind == "at once")
            yield
            return
        content = self._raw(algorithm, query)
        with self._open() as connection:
            if kind == "garbage":
                content = random.Random(query).randbytes(4096)
            connection.sendall(content[: len(content) // 2] if kind == "half" else content)
            if kind != "cut":  # it stays open without a word
                yield
        if kind == "cut":
            yield

    def _open(self):
        return open_tls(self.port, self.certificate)

    def _raw(self, algorithm, query):
        """Return the bytes of a request."""
        path, body = self._request(algorithm, query)
        content = json.dumps(body).encode()
        head = f"POST {path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {self.token}\r\n"
        return f"{head}Content-Length: {len(content)}\r\n\r\n".encode() + content

    def _repeat(self, algorithm, query, *, is_at_once):
        """Send a request with the same key four times; all answers are one."""
        answers = []

        def send():
            with self._http() as http:
                headers = {"Idempotency-Key": f"{algorithm} {query}"}
                answers.append(self._post(http, algorithm, query, **headers).content)

        threads = [threading.Thread(target=send) for _ in range(4)]
        for thread in threads:
            thread.start()
            if not is_at_once:
                thread.join()
        for thread in threads:
            thread.join()
        assert len(answers) == len(threads)
        assert len(set(answers)) == 1, "answers to one request differ"


def open_tls(port, certificate):
    """Return a connection to the broker."""
    context = ssl.create_default_context(cafile=str(certificate))
    connection = socket.create_connection(("127.0.0.1", port))
    return context.wrap_socket(connection, server_hostname="127.0.0.1")


def send_and_sleep(pipe, port, certificate, content):
    """Send a request, and read no answer."""
    with open_tls(port, certificate) as connection:
        connection.sendall(content)
        pipe.send("sent")
        signal.pause()


def main(*, at_messages=False, kinds=("full", "clock", "client"), algorithms=ALGORITHMS):
    """Run every fault with every algorithm; return a summary."""
    has_disks = can_mount()
    faults = all_faults(has_disks=has_disks, at_messages=at_messages)
    chosen = [fault for fault in faults if fault.kind in kinds]
    return run_cases(
        list(itertools.product(chosen, algorithms)),
        lambda folder: HostCampaign(folder, has_disks=has_disks),
        lambda fault: f"{fault.kind} {fault.place} {fault.detail}",
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--at-messages", action="store_true")
    parser.add_argument("--kind", choices=["full", "clock", "client"])
    options = parser.parse_args()
    kinds = {"kinds": (options.kind,)} if options.kind else {}
    found = main(at_messages=options.at_messages, **kinds)
    print(json.dumps(found, indent=1))
    sys.exit(not is_right(found))
