"""Faults of machines and of users: full disks, changed clocks, bad clients.

A broker and two providers run as processes. A full disk is a real one where this process may mount
a small file system, and a limit on the size of files everywhere; clocks are changed by libfaketime.
``python -m tests.service.host_faults`` runs each fault with each algorithm and prints a summary as
JSON.
"""

import contextlib
import itertools
import json
import multiprocessing
import os
import random
import resource
import signal
import socket
import ssl
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import httpx
import numpy as np

from fedneighbors.privacy.ledger._ledger import Ledger
from fedneighbors.secure_sum._keys import Identity
from fedneighbors.service._access_log import AccessLog
from fedneighbors.service._config import BrokerConfig, PolicySection
from fedneighbors.service._offers import OfferedObjects, search_once
from fedneighbors.service._provider import ProviderService
from fedneighbors.service._server import add_local_provider, run_broker
from fedneighbors.service._state import open_state
from tests.service.deployment import offered
from tests.service.faults import ALGORITHMS, OWNERS, POINTS, RECOVERY_S, SECTIONS, START_S
from tests.service.test_processes import free_port

DEADLINE_S = 2.0
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


def all_faults(*, has_disks):
    """Return the faults that this machine can have."""
    found = [HostFault("full", place, "limit") for place in ("broker", "north")]
    if has_disks:
        found += [HostFault("full", place, "disk") for place in ("state", "ledger", "north")]
    if FAKETIME:
        found += [HostFault("clock", place, day) for place in ("broker", "north") for day in DAY]
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


def make_config(folder, port):
    """Return the configuration of the broker, whose ledger has a disk of its own."""
    private = SECTIONS["private"]
    privacy = {**private["privacy"], "ledger": "ledger/private.sqlite"}
    return BrokerConfig.model_validate(
        {
            "format": 1,
            "folder": folder,
            "log": "state/log.sqlite",
            "server": {"listen": f"127.0.0.1:{port}", "heartbeat_s": 1.0},
            "collections": {**SECTIONS, "private": {**private, "privacy": privacy}},
        }
    )


def serve(name, folder, port):
    """Run the broker or a provider, which keeps a log, in this process."""
    import asyncio

    if name == "broker":
        asyncio.run(run_broker(make_config(folder, port), lambda *_: None))
        return
    number, log = OWNERS.index(name), AccessLog(folder / name / "log.sqlite")
    ids = [str(row) for row in range(number, len(POINTS), 2)]
    offers = {}
    for collection in SECTIONS:
        rows, options = POINTS[number::2], {"ids": ids, "tie_key": "0", "epoch": f"{number:032x}"}
        made = offered(name, collection, "euclidean", rows, **options)
        search_once(made.party, rows[0])  # as OfferedObjects.read does
        policy = PolicySection(level="distances")
        offers[collection] = OfferedObjects(made.party, made.offer, policy=policy, log=log)
    identity = Identity.read(folder / name / "key.pem")
    certificate = (folder / "state/server.crt").read_text()
    service = ProviderService(name, identity, offers)
    asyncio.run(service.run(f"https://127.0.0.1:{port}", certificate))


class HostCampaign:
    """Processes of a service, and queries of users during faults."""

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
        try:
            for name in ("broker", *OWNERS):
                self._start(name)
            self._recover("baseline", self._next_query(), START_S)
        except BaseException:
            self.close()
            raise

    def _start(self, name):
        (self.folder / f"{name}.clock").write_text("+0")
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        if FAKETIME:
            environment |= {
                "LD_PRELOAD": FAKETIME[0],
                "FAKETIME_TIMESTAMP_FILE": str(self.folder / f"{name}.clock"),
                "FAKETIME_CACHE_DURATION": "1",  # reads the file once a second
                "FAKETIME_DONT_FAKE_MONOTONIC": "1",
            }
        command = [sys.executable, "-m", "tests.service.host_faults", "--serve", name]
        process = subprocess.Popen(
            [*command, str(self.folder), str(self.port)],
            env=environment,
            stderr=(self.folder / f"{name}.err").open("w"),
        )
        self.processes[name] = process
        self._stack.callback(process.wait)
        self._stack.callback(process.kill)

    def close(self):
        """End all processes."""
        self._stack.close()

    def run(self, fault, algorithm):
        """Run queries during a fault and after it; return outcomes, or raise AssertionError.

        Returns
        -------
        list of str
            Outcome of each query during the fault.
        seconds : float
            Those of the slowest query.
        recovery_s : float
            Seconds from the end of the fault to the right answer.
        """
        charged = self._count_charges()
        queries = [self._next_query() for _ in range(3)]
        outcomes, slowest = [], 0.0
        with self._fault(fault, algorithm, queries[0]):
            for query in queries:
                started = time.monotonic()
                outcomes.append(self._ask(algorithm, query))
                slowest = max(slowest, time.monotonic() - started)
        assert set(outcomes) <= TYPED | {"exact"}, outcomes
        recovery_s = max(self._recover(algorithm, query, 3 * RECOVERY_S) for query in queries)
        if algorithm == "dann*":
            n_charges = self._count_charges() - charged
            expected = len(queries) * len(OWNERS)
            assert n_charges == expected, f"{n_charges} charges for {len(queries)} queries"
        self._check_logs()
        for name, process in self.processes.items():
            assert process.poll() is None, f"{name} has ended"
        return outcomes, slowest, recovery_s

    def _next_query(self):
        return 0.3 + next(self._queries) / 64

    def _recover(self, algorithm, query, limit_s):
        """Repeat a query until its answer is right; return the seconds."""
        started = time.monotonic()
        while (outcome := self._ask(algorithm, query)) != "exact":
            assert time.monotonic() - started < limit_s, f"no recovery: {outcome}"
            time.sleep(0.05)
        return time.monotonic() - started

    def _ask(self, algorithm, query, **headers):
        """Return "exact" for the right answer, or the code of an error."""
        try:
            with self._http() as http:
                return self._read(self._post(http, algorithm, query, **headers), query)
        except httpx.TransportError as error:
            return type(error).__name__

    def _http(self):
        context = ssl.create_default_context(cafile=str(self.certificate))
        headers = {"Authorization": f"Bearer {self.token}"}
        url = f"https://127.0.0.1:{self.port}"
        return httpx.Client(base_url=url, headers=headers, verify=context, timeout=2 * DEADLINE_S)

    def _post(self, http, algorithm, query, **headers):
        path, body = self._request(algorithm, query)
        return http.post(path, json=body, headers=headers)

    def _request(self, algorithm, query):
        """Return path and body of a search."""
        body = {"query": [query], "k": 5, "deadline_s": DEADLINE_S}
        if algorithm == "dann*":
            return "/v1/collections/private/search", body
        return "/v1/collections/points/search", {**body, "algorithm": algorithm}

    def _read(self, response, query):
        """Check an answer; return "exact", or the code of a problem."""
        answer = response.json()
        return self._check(answer, query) if response.status_code == 200 else answer["code"]

    def _check(self, answer, query):
        """Check an answer; return "exact", or "partial" if a provider is missing."""
        distances = np.abs(POINTS[:, 0] - query)
        found = [distances[int(one["id"])] for one in answer["neighbors"]]
        missing = [OWNERS.index(owner) for owner in answer["missing"]]
        rows = [row for row in range(len(POINTS)) if row % len(OWNERS) not in missing]
        expected = np.sort(distances[rows])[:5]
        assert answer["exact"] == (not missing)
        np.testing.assert_array_equal(found, expected, "wrong objects")
        np.testing.assert_array_equal([one["distance"] for one in answer["neighbors"]], expected)
        with contextlib.closing(AccessLog(self.folder / "state/log.sqlite")) as log:
            logged = {one["query"] for one in log.entries_of("users", 100)}
        assert answer["query_id"] in logged, "an answer without an entry in the log"
        return "partial" if missing else "exact"

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
        if fault.kind == "full":
            return self._limit(fault.place) if fault.detail == "limit" else self._fill(fault.place)
        if fault.kind == "clock":
            return self._change_clock(fault.place, DAY[fault.detail])
        return self._bad_client(fault.detail, algorithm, query)

    @contextlib.contextmanager
    def _limit(self, place):
        """Let a process write no file."""
        pid = self.processes[place].pid
        old = resource.prlimit(pid, resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))
        try:
            yield
        finally:
            resource.prlimit(pid, resource.RLIMIT_FSIZE, old)

    @contextlib.contextmanager
    def _fill(self, place):
        """Fill the file system of a folder."""
        path = self.folder / place / "filler"
        with path.open("wb", buffering=0) as file, contextlib.suppress(OSError):
            while file.write(b"0" * 4096):
                pass
        try:
            yield
        finally:
            path.unlink()

    @contextlib.contextmanager
    def _change_clock(self, place, n_days):
        path = self.folder / f"{place}.clock"
        path.write_text(f"{n_days:+d}d")
        self._wait_for_clock(place, n_days)
        try:
            yield
        finally:
            path.write_text("+0")
            self._wait_for_clock(place, 0)

    def _wait_for_clock(self, place, n_days):
        """Ask until the log of a process shows its clock."""
        path = self.folder / ("state" if place == "broker" else place) / "log.sqlite"
        end = time.monotonic() + START_S
        while time.monotonic() < end:
            self._ask("baseline", 0.1)
            with contextlib.closing(AccessLog(path)) as log:
                (entry,) = log.entries_of("users", 1)
            if round((entry["time"] - time.time()) / 86_400) == n_days:
                return
        raise AssertionError(f"the clock of {place} does not change")

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


def main():
    """Run every fault with every algorithm; print a summary."""
    outcomes, failed, slow = Counter(), [], Counter()
    has_disks = can_mount()
    cases = list(itertools.product(all_faults(has_disks=has_disks), ALGORITHMS))
    with tempfile.TemporaryDirectory() as folder:
        campaign = HostCampaign(Path(folder), has_disks=has_disks)
        try:
            for number, (fault, algorithm) in enumerate(cases):
                try:
                    found, seconds, recovery_s = campaign.run(fault, algorithm)
                except AssertionError as error:
                    failed.append([algorithm, str(fault), str(error)])
                    continue
                for outcome in found:
                    outcomes[f"{fault.kind} {fault.place} {fault.detail}: {outcome}"] += 1
                slow["later than deadline + 100 ms"] += seconds > DEADLINE_S + 0.1
                slow["recovery of more than 5 s"] += recovery_s > RECOVERY_S
                if sys.stderr.isatty():
                    print(f"\r{number + 1} of {len(cases)}", end="", file=sys.stderr)
        finally:
            campaign.close()
    summary = {"cases": len(cases), "outcomes": dict(sorted(outcomes.items())), "failed": failed}
    print(json.dumps({**summary, "slow": slow}, indent=1))
    return not failed


if __name__ == "__main__":
    if sys.argv[1:2] == ["--serve"]:
        serve(sys.argv[2], Path(sys.argv[3]), int(sys.argv[4]))
    else:
        sys.exit(not main())
