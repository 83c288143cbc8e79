"""Wrong identities at every message of a query.

When the n-th message of one direction passes, between the provider ``north`` and the broker, or
between a user and the broker, somebody else appears. A provider's link is cut, and a process with
another key connects as ``north`` until the user has an outcome. Or a link is cut, and further
connections reach a server with another certificate than the broker's. Or another client sends the
user's request with the same ``Idempotency-Key``. ``python -m tests.service.identity_faults`` runs
all of them with every algorithm, and prints a summary as JSON.
"""

import asyncio
import contextlib
import itertools
import json
import ssl
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from fedneighbors.federation._messages import decode, encode
from fedneighbors.federation._roles import Refusal
from fedneighbors.secure_sum._keys import Identity
from fedneighbors.service._access_log import AccessLog
from fedneighbors.service._dialling import ConnectionRejected, open_link
from fedneighbors.service._messages import NOT_ENROLLED, Challenge, Hello, Welcome
from fedneighbors.service._provider import ProviderService
from fedneighbors.service._server import add_local_provider
from fedneighbors.service._state import open_state
from fedneighbors.service._tls import make_certificate
from tests.service.deployment import offered
from tests.service.faults import (
    ALGORITHMS,
    HONEST,
    OWNERS,
    PARTIAL,
    POINTS,
    RECOVERY_S,
    SECTIONS,
    START_S,
    UNREACHABLE,
    Case,
    Message,
    all_messages,
    check_answer,
    is_right,
    run_cases,
)
from tests.service.host_faults import HostCampaign
from tests.service.hosts import make_config

KINDS = {
    "provider": ("new key", "another provider's key", "earlier hello", "new key, link kept"),
    "broker": ("another certificate",),
    "client": ("unknown token", "another user"),
}
LINKS = {"provider": ("provider",), "broker": ("provider", "user"), "client": ("user",)}


@dataclass(frozen=True)
class IdentityFault:
    """A wrong identity in place of a process, from a message on."""

    kind: str
    target: str
    message: Message


def all_faults(targets=tuple(KINDS)):
    """Yield every wrong identity at every message."""
    for target in targets:
        for kind, message in itertools.product(KINDS[target], all_messages(LINKS[target])):
            yield IdentityFault(kind, target, message)


class IdentityCampaign(HostCampaign):
    """Processes of a service, and impostors in this process."""

    def __init__(self, folder):
        super().__init__(folder, has_disks=False)
        state, _ = open_state(make_config(folder, self.port))
        self.tokens = {
            "unknown token": "0" * 64,
            "another user": state.new_token("others", 30, ("search",)),
        }
        self.keys = {
            "another provider's key": Identity.new(),
            "earlier hello": Identity.read(folder / "north/key.pem"),
        }
        add_local_provider(state, "west", self.keys["another provider's key"])
        state.close()
        self._clients = ThreadPoolExecutor(1)
        self._stack.callback(self._clients.shutdown)
        wrong = POINTS[::2] + 0.25  # an impostor's answers would be noticed
        self.offers = {
            name: offered("north", name, "euclidean", wrong, tie_key="0") for name in SECTIONS
        }
        self._impostor = self.relays.run(FalseBroker.start(folder))

    def run(self, fault, algorithm):
        """Run a query with a fault; return its case, or raise AssertionError."""
        if not isinstance(fault, IdentityFault):
            return super().run(fault, algorithm)
        charged, query = self._count_charges(), self._next_query()
        act = {
            "provider": self._meet_false_provider,
            "broker": self._meet_false_broker,
            "client": self._meet_false_client,
        }
        case = act[fault.target](fault, algorithm, query)
        assert set(case.outcomes) <= {"exact", "partial", UNREACHABLE, *HONEST}, case.outcomes
        assert "partial" not in case.outcomes or "partial" in algorithm
        case.recovery_s = self._recover(algorithm, query, 3 * RECOVERY_S)
        if algorithm == "dann*":
            n_charges = self._count_charges() - charged
            assert n_charges == len(OWNERS), f"{n_charges} charges for one query"
        self._check_logs()
        for name, process in self.processes.items():
            assert process.poll() is None, f"{name} has ended"
        return case

    def _search(self, fault, algorithm, query, hit):
        """Run the user's query; return its case."""
        self.relays.delay.take()
        started = time.monotonic()
        outcome, party = self._ask(algorithm, query, fault.message.link)
        seconds = time.monotonic() - started
        assert outcome not in HONEST or party == "north", f"{outcome} of {party}"
        return Case([outcome], hit.is_set(), seconds, self.relays.delay.take())

    # Impostors

    def _meet_false_provider(self, fault, algorithm, query):
        """Let an impostor connect as ``north`` until the query has an outcome."""
        ended, tasks = asyncio.Event(), []

        def act():
            tasks.append(self.relays.loop.create_task(self._pose(fault.kind, ended)))

        kind = "act" if "kept" in fault.kind else "cut"
        with self.relays.armed(fault.message, act, kind) as hit:
            case = self._search(fault, algorithm, query, hit)
        self.relays.loop.call_soon_threadsafe(ended.set)
        for task in tasks:
            refusals = self.relays.run(asyncio.wait_for(task, RECOVERY_S))
            assert all(NOT_ENROLLED in one for one in refusals), refusals
        return case

    async def _pose(self, kind, ended):
        """Connect as ``north`` again and again; return why the broker refuses it."""
        url, certificate = f"https://127.0.0.1:{self.port}", self.certificate.read_text()
        key, refusals = self.keys.get(kind) or Identity.new(), []
        service = ProviderService("north", key, self.offers)
        while not (ended.is_set() and refusals):
            try:
                if kind == "earlier hello":
                    await send_earlier_hello(url, certificate, key)
                else:
                    await service.run(url, certificate)
            except ConnectionRejected as error:
                refusals.append(str(error))
        return refusals

    def _meet_false_broker(self, fault, algorithm, query):
        """Let connections reach another server until the query has an outcome."""
        relay = self.relays.of[fault.message.link]

        def act():
            self._impostor.met.clear()
            relay.port = self._impostor.port

        try:
            with self.relays.armed(fault.message, act, "cut") as hit:
                case = self._search(fault, algorithm, query, hit)
            if case.is_hit and fault.message.link == "user":  # the user tries again
                case.outcomes += self._search(fault, algorithm, query, hit).outcomes
                assert case.outcomes[1] == UNREACHABLE, case.outcomes
            if case.is_hit:
                self.relays.run(asyncio.wait_for(self._impostor.met.wait(), RECOVERY_S))
        finally:
            relay.port = self.port
        assert self._impostor.seen == b"", "the impostor received bytes"
        return case

    def _meet_false_client(self, fault, algorithm, query):
        """Let another client send the user's request with its key."""
        key, answers = {"Idempotency-Key": f"{fault} {algorithm}"}, []

        def send(token, port):
            with self._http(token, port) as http:
                return self._post(http, algorithm, query, **key)

        def act():
            answers.append(self._clients.submit(send, self.tokens[fault.kind], self.port))

        with self.relays.armed(fault.message, act) as hit:
            self.relays.delay.take()
            started = time.monotonic()
            ours = send(self.token, self.relays.ports["user"])
            seconds, delay_s = time.monotonic() - started, self.relays.delay.take()
        assert ours.status_code == 200, ours.text
        for answer in answers:
            theirs = answer.result(START_S)
            if fault.kind == "unknown token":
                assert (theirs.status_code, theirs.json()["code"]) == (401, "unauthorized")
                continue
            assert theirs.status_code == 200, theirs.text
            assert check_answer(theirs.json(), query) == "exact"
            assert theirs.json()["query_id"] != ours.json()["query_id"], "another user's answer"
            with contextlib.closing(AccessLog(self.folder / "state/log.sqlite")) as log:
                (entry,) = log.entries_of("others", 1)
            assert entry["query"] == theirs.json()["query_id"], "no entry of the other user"
        return Case([self._check(ours.json(), query)], hit.is_set(), seconds, delay_s)


async def send_earlier_hello(url, certificate, key):
    """Connect with a hello that was signed for an earlier link; raise ConnectionRejected."""
    async with open_link(url, certificate) as connection:
        await connection.recv()
        hello = Hello.signed("north", (), key, challenge=Challenge.new(), fingerprint=b"")
        await connection.send(encode(hello))
        reply = decode(await connection.recv(), (Welcome, Refusal))
    assert isinstance(reply, Refusal), "an earlier hello was accepted"
    raise ConnectionRejected(reply.code)


class FalseBroker:
    """A server with a certificate of its own.

    Attributes
    ----------
    met : asyncio.Event
        Set after an attempt to connect.
    seen : bytes
        Bytes that clients sent it.
    """

    def __init__(self, context):
        self.met, self.seen, self._context = asyncio.Event(), b"", context

    @classmethod
    async def start(cls, folder):
        """Return a server that accepts connections."""
        certificate, key = folder / "false.crt", folder / "false.key"
        make_certificate(certificate, key, ())
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate, key)
        server = cls(context)
        listener = await asyncio.start_server(server._serve, "127.0.0.1", 0)
        server.port = listener.sockets[0].getsockname()[1]
        return server

    async def _serve(self, reader, writer):
        with contextlib.suppress(OSError):
            await writer.start_tls(self._context)
            self.seen += await reader.read(1 << 16)
        writer.close()
        self.met.set()


def main(targets=tuple(KINDS)):
    """Run all wrong identities with every algorithm; return a summary."""
    algorithms = (*ALGORITHMS, PARTIAL)
    cases = [
        (fault, algorithm)
        for fault, algorithm in itertools.product(all_faults(targets), algorithms)
        if fault.message.link == "provider" or algorithm != PARTIAL
    ]
    return run_cases(cases, IdentityCampaign, lambda fault: f"{fault.target}: {fault.kind}")


if __name__ == "__main__":
    found = main(tuple(sys.argv[1:]) or tuple(KINDS))
    print(json.dumps(found, indent=1))
    sys.exit(not is_right(found))
