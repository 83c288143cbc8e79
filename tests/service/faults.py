"""Faults of links at every message of a query, and what users get.

Each fault hits the n-th message of one direction, on the link of one provider: in a relay of bytes
before the broker, or of whole messages in the broker. ``python -m tests.service.faults`` runs all
of them and prints a summary as JSON.
"""

import asyncio
import contextlib
import itertools
import json
import os
import sys
import tempfile
import threading
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fedneighbors.federation._messages import decode, encode
from fedneighbors.service import BrokerUnreachable, ServiceError
from fedneighbors.service._messages import (
    Challenge,
    Hello,
    LinkReplies,
    LinkRequest,
    LinkRequests,
)
from tests.service.deployment import deployed, offered

OWNERS = ("north", "south")
POINTS = np.arange(60.0)[:, np.newaxis]
BYTE_FAULTS = ("cut", "half", "stall", "garbage", "delay")
MESSAGE_FAULTS = (
    *("drop", "twice", "swap", "truncate", "epoch", "delay"),
    *("number", "query", "hello"),  # those of another request, query and provider
)
DIRECTIONS = ("to provider", "to broker")
N_POSITIONS = {"provider": 5, "user": 4}  # messages of each direction, by link to the broker
ALGORITHMS = ("baseline", "dann", "eager", "hufu+", "dann*")
PARTIAL = "dann, partial"  # with allow_partial
DEADLINE_S, LATE_S, DELAY_S, RECOVERY_S, START_S = 1.0, 0.1, 0.3, 5.0, 30.0
# codes for an honest provider behind a bad link
HONEST = {"provider-missing", "provider-restarted", "deadline-passed"}
REFUSED = {"provider-refused"}  # for a request that names two queries
UNREACHABLE = "broker-unreachable"  # an outcome of a client whose deadline has passed
SECTIONS = {
    "points": {"metric": "euclidean", "providers": OWNERS, "tie_key": "0"},
    "private": {
        "metric": "euclidean",
        "providers": OWNERS,
        "tie_key": "0",
        "algorithm": "dann*",
        "privacy": {"epsilon": 1.0, "delta": 1e-6, "grid_s": 0.0, "max_queries": 10_000},
    },
}


@dataclass(frozen=True)
class Fault:
    """A fault of a link at a message."""

    level: str
    kind: str
    direction: str
    position: int


def all_faults(n_positions):
    """Yield every fault at the first messages of a query."""
    levels = {"bytes": BYTE_FAULTS, "message": MESSAGE_FAULTS}
    for level, kinds in levels.items():
        for kind, direction, position in itertools.product(kinds, DIRECTIONS, range(n_positions)):
            # requests have no epoch, and replies no query
            if direction != {"epoch": "to provider", "query": "to broker"}.get(kind):
                yield Fault(level, kind, direction, position)


@dataclass(frozen=True)
class Message:
    """A message of a query on a link to the broker."""

    link: str
    direction: str
    position: int


def all_messages(links=tuple(N_POSITIONS)):
    """Yield the messages of links at which faults begin."""
    for link, direction in itertools.product(links, DIRECTIONS):
        for position in range(N_POSITIONS[link]):
            yield Message(link, direction, position)


@dataclass
class Case:
    """The course of queries with a fault.

    ``seconds`` are those of the slowest query; ``delay_s`` is by how much the machine was late
    meanwhile. ``recovery_s`` runs from the end of the fault to the right answer.
    """

    outcomes: list[str]
    is_hit: bool
    seconds: float
    delay_s: float
    recovery_s: float = 0.0

    @property
    def outcome(self):
        """Return the outcome of the first query."""
        return self.outcomes[0]


def search(client, query):
    """Return the answer to a query; for an error, None, its code and the provider it names."""
    try:
        client.kneighbors([[query]], 5)
    except ServiceError as error:
        return None, error.code, error.party
    except BrokerUnreachable:
        return None, UNREACHABLE, None
    return client.results_[0], "", None


def check_answer(answer, query):
    """Check an answer; return "exact", or "partial" if a provider is missing."""
    distances = np.abs(POINTS[:, 0] - query)
    found = [distances[int(one["id"])] for one in answer["neighbors"]]
    missing = [OWNERS.index(owner) for owner in answer["missing"]]
    rows = [row for row in range(len(POINTS)) if row % len(OWNERS) not in missing]
    expected = np.sort(distances[rows])[:5]
    assert answer["exact"] == (not missing)
    np.testing.assert_array_equal(found, expected, "wrong objects")
    np.testing.assert_array_equal([one["distance"] for one in answer["neighbors"]], expected)
    return "partial" if missing else "exact"


class LoopDelay:
    """Measures the delay of an event loop, at which a busy machine shows."""

    def __init__(self):
        self._worst_s = 0.0

    async def run(self):
        """Wake up a hundred times a second until cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            due = loop.time() + 0.01
            await asyncio.sleep(0.01)
            self._worst_s = max(self._worst_s, loop.time() - due)

    def take(self):
        """Return the longest delay since the last call, in seconds."""
        worst_s, self._worst_s = self._worst_s, 0.0
        return worst_s


class FaultyRelay:
    """Passes bytes on between providers and the broker; a fault hits one chunk."""

    def __init__(self, url, act=lambda: None):
        self.port, self.fault, self.n_passed = int(url.rpartition(":")[2]), None, 0
        self.act = act  # called when a fault hits; "act" is no other fault

    async def start(self):
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        return f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}"

    def arm(self, fault):
        """Let a fault hit from now on; end an earlier one."""
        self.fault, self.n_passed = fault, 0

    async def _serve(self, reader, writer):
        try:
            up, down = await asyncio.open_connection("127.0.0.1", self.port)
        except OSError:  # the broker was killed
            writer.close()
            return
        await asyncio.gather(
            self._pass(reader, down, "to broker"), self._pass(up, writer, "to provider")
        )

    async def _pass(self, reader, writer, direction):
        is_dead = False
        with contextlib.suppress(OSError):
            while data := await reader.read(1 << 16):
                fault = self.fault
                if fault is not None and fault.direction == direction:
                    self.n_passed += 1
                    if self.n_passed == fault.position + 1:
                        self.fault = None
                        self.act()
                        if fault.kind == "delay":
                            await asyncio.sleep(DELAY_S)
                        elif fault.kind == "garbage":
                            data = os.urandom(len(data))
                        elif fault.kind == "stall":
                            is_dead = True
                        elif fault.kind in ("cut", "half"):
                            writer.write(data[: len(data) // 2] if fault.kind == "half" else b"")
                            break
                if not is_dead:
                    writer.write(data)
        writer.close()


class Relays:
    """Relays to the broker in a thread of their own, one for each link."""

    def __init__(self, port):
        self.loop, self.delay = asyncio.new_event_loop(), LoopDelay()
        self._thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self._thread.start()
        self._watch = asyncio.run_coroutine_threadsafe(self.delay.run(), self.loop)
        self.of = {link: FaultyRelay(f"https://127.0.0.1:{port}") for link in N_POSITIONS}
        self.ports = {
            link: int(self.run(relay.start()).rpartition(":")[2]) for link, relay in self.of.items()
        }

    def run(self, work):
        """Run a coroutine in the loop; return its result."""
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(START_S)

    @contextlib.contextmanager
    def armed(self, message, act, kind="act"):
        """Call a function when a message passes during the block; yield an event of it.

        The function runs before the message goes on. ``kind`` is a fault of the message itself.
        """
        relay, hit = self.of[message.link], threading.Event()

        def act_once():
            act()
            hit.set()

        relay.act = act_once
        relay.arm(Fault("bytes", kind, message.direction, message.position))
        try:
            yield hit
        finally:
            self.disarm(message.link)

    def disarm(self, link):
        """Let no message of a link be hit any more."""
        self.of[link].arm(None)
        self.run(asyncio.sleep(0))  # a function that runs has ended

    def close(self):
        """End the thread."""
        self._watch.cancel()
        self.run(asyncio.sleep(0))  # it has ended
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(START_S)


class MessageFaults:
    """Changes whole messages of a provider's link, in the broker."""

    def __init__(self, link, hello):
        self._hello = hello  # another provider's
        self._link, self.fault, self.n_seen, self._held = link, None, 0, {}
        self._send, self._receive = link._send, link.receive
        link._send, link.receive = self.send, self.receive

    def arm(self, fault):
        """Let a fault hit from now on."""
        self.fault, self.n_seen = fault, 0

    def _change(self, frame, direction):
        """Return the frames that replace one, and seconds to wait."""
        held = self._held.pop(direction, None)
        frames, fault = [frame] if held is None else [frame, held], self.fault
        if fault is None or fault.direction != direction:
            return frames, 0.0
        self.n_seen += 1
        if self.n_seen != fault.position + 1:
            return frames, 0.0
        self.fault = None
        match fault.kind:
            case "drop":
                return [], 0.0
            case "twice":
                return [*frames, frame], 0.0
            case "swap":
                self._held[direction] = frame
                return [], 0.0
            case "truncate":
                return [frame[: len(frame) // 2]], 0.0
            case "epoch" | "number" | "query":
                return [_replace(frame, fault.kind)], 0.0
            case "hello":
                return [self._hello], 0.0
        return frames, DELAY_S

    async def send(self, frame):
        frames, wait_s = self._change(frame, "to provider")
        await asyncio.sleep(wait_s)
        for one in frames:
            await self._send(one)

    def receive(self, frame):
        frames, wait_s = self._change(frame, "to broker")
        loop = asyncio.get_running_loop()
        for one in frames:
            if wait_s:
                loop.call_later(wait_s, self._receive, one)
            else:
                self._receive(one)


def _replace(frame, field):
    """Return a message with other epochs, numbers or queries, unchanged if it has none."""
    if b"LinkRequests" in frame[:40]:
        found = decode(frame, (LinkRequests,))
        change = {"number": lambda number: number + 1_000_000, "query": lambda name: f"x{name}"}
        requests = [vars(decode(one, (LinkRequest,))) for one in found.frames]
        changed = [{**one, field: change[field](one[field])} for one in requests]
        return encode(LinkRequests(found.closed, tuple(encode(LinkRequest(**o)) for o in changed)))
    if b"LinkReplies" not in frame[:40]:
        return frame
    found = decode(frame, (LinkReplies,))
    numbers, epochs = found.numbers, found.epochs
    if field == "epoch":
        epochs = (b"x" * 16,) * len(numbers)
    else:
        numbers = tuple(number + 1_000_000 for number in numbers)
    return encode(LinkReplies(numbers, found.busy_us, found.bodies, epochs))


class Campaign:
    """Runs queries during faults, and checks what users get."""

    deadline_s = DEADLINE_S

    def __init__(self, folder):
        self._stack = contextlib.ExitStack()
        self.deployment = self._stack.enter_context(deployed(folder, SECTIONS))
        self.relay = FaultyRelay(self.deployment.url)
        url = self.deployment.run(self.relay.start())
        for number, owner in enumerate(OWNERS):
            offers = {
                name: offered(
                    owner,
                    name,
                    "euclidean",
                    POINTS[number::2],
                    ids=[str(row) for row in range(number, len(POINTS), 2)],
                    tie_key="0",
                    epoch=f"{number:032x}",
                )
                for name in SECTIONS
            }
            self.deployment.start(owner, offers, url=url if owner == "north" else None)
        self.deployment.wait(*OWNERS)
        key, challenge = self.deployment.identities["south"], Challenge.new()
        self._hello = encode(Hello.signed("south", (), key, challenge=challenge, fingerprint=b""))
        self._link, self._messages, self._queries = None, None, itertools.count()
        self.delay = LoopDelay()
        self._watch = asyncio.run_coroutine_threadsafe(self.delay.run(), self.deployment.loop)
        for algorithm in ALGORITHMS:  # compiled code is loaded, as by a real start
            with self._client(algorithm == "dann*", algorithm, START_S) as client:
                self._ask(client, 0.1)

    def close(self):
        self._watch.cancel()
        self._stack.close()

    def run(self, fault, algorithm):
        """Run a query during a fault; return its case, or raise AssertionError."""
        self.deployment.wait(*OWNERS)
        link = self.deployment.broker.registry.links["north"]
        if link is not self._link:
            self._link, self._messages = link, MessageFaults(link, self._hello)
        private, query = algorithm == "dann*", 0.3 + next(self._queries) / 64
        charged = self._count_charges()
        armed = self.relay if fault.level == "bytes" else self._messages
        armed.arm(fault)
        with self._client(private, algorithm) as client:
            self.delay.take()
            started = time.monotonic()
            outcome = self._ask(client, query)
        seconds, delay_s = time.monotonic() - started, self.delay.take()
        is_hit = armed.fault is None
        armed.arm(None)
        allowed = REFUSED if fault.kind == "query" else set()
        assert outcome in HONEST | allowed | {"exact", "partial", UNREACHABLE}, outcome
        recovered = time.monotonic()
        while True:
            with self._client(private, algorithm) as client:
                again = self._ask(client, query)
            if again == "exact":
                break
            assert again in HONEST | {"partial", UNREACHABLE}, again
        recovery_s = time.monotonic() - recovered
        if private:
            n_charges = self._count_charges() - charged
            assert n_charges == len(OWNERS), f"{n_charges} charges for one query"
        return Case([outcome], is_hit, seconds, delay_s, recovery_s)

    def _client(self, private, algorithm, deadline_s=DEADLINE_S):
        name, _, partial = algorithm.partition(",")
        options = {} if private else {"algorithm": name, "allow_partial": bool(partial)}
        name = "private" if private else "points"
        return self.deployment.client(name, deadline_s=deadline_s, **options)

    def _ask(self, client, query):
        """Return "exact" or "partial" for a right answer, or the code of an error."""
        answer, code, party = search(client, query)
        if answer is None:
            assert code == UNREACHABLE or party == "north", f"{code} of {party}"
            return code
        allowed = {"north"} if client.allow_partial else set()
        assert set(answer["missing"]) <= allowed, f"missing: {answer['missing']}"
        return check_answer(answer, query)

    def _count_charges(self):
        ledger = self.deployment.broker.collections["private"].ledger
        return sum(entry.kind == "released" for entry in ledger.entries())


def run_cases(cases, campaign_of, describe):
    """Run faults with algorithms in a campaign; return a summary.

    Parameters
    ----------
    cases : list of tuple
        Faults and algorithms.
    campaign_of : callable
        Returns a campaign for a folder.
    describe : callable
        Returns the name of a fault in the summary.
    """
    outcomes, failed, late, recoveries, delays = Counter(), [], [], [0.0], [0.0]
    n_hit, n_messages = Counter(), Counter()
    with tempfile.TemporaryDirectory() as folder:
        campaign = campaign_of(Path(folder))
        try:
            for number, (fault, algorithm) in enumerate(cases):
                try:
                    case = campaign.run(fault, algorithm)
                except AssertionError as error:
                    failed.append([algorithm, str(fault), str(error)])
                    continue
                what = describe(fault) if case.is_hit else "no such message"
                n_hit[what] += 1
                message = getattr(fault, "message", None)
                if case.is_hit and message is not None:
                    place = f"{message.link} {message.direction}"
                    n_messages[place] = max(n_messages[place], message.position + 1)
                outcomes[f"{what}: {case.outcome}"] += 1
                outcomes.update(f"{what}, later: {outcome}" for outcome in case.outcomes[1:])
                recoveries.append(case.recovery_s)
                delays.append(case.delay_s)
                if case.seconds > campaign.deadline_s + LATE_S:
                    times = round(case.seconds, 3), round(case.delay_s, 3)
                    late.append([algorithm, str(fault), case.outcomes, *times, os.getloadavg()[0]])
                if sys.stderr.isatty():
                    print(f"\r{number + 1} of {len(cases)}", end="", file=sys.stderr)
        finally:
            campaign.close()
    return {
        "cases": len(cases),
        "by fault": n_hit,
        "messages": n_messages,
        "outcomes": dict(sorted(outcomes.items())),
        "failed": failed,
        "late: seconds, delay of the machine, load": late,
        "longest recovery (s)": round(max(recoveries), 2),
        "longest delay of the machine (s)": round(max(delays), 3),
        "load": os.getloadavg(),
    }


def is_right(found):
    """Return whether a summary has no fault."""
    return not found["failed"] and found["longest recovery (s)"] <= RECOVERY_S


def main(n_positions=6, kinds=(*BYTE_FAULTS, *MESSAGE_FAULTS)):
    """Run every fault with every algorithm; return a summary."""
    faults = [fault for fault in all_faults(n_positions) if fault.kind in kinds]
    cases = [(fault, algorithm) for algorithm in (*ALGORITHMS, PARTIAL) for fault in faults]
    return run_cases(cases, Campaign, lambda fault: f"{fault.level} {fault.kind}")


if __name__ == "__main__":
    found = main()
    print(json.dumps(found, indent=1))
    sys.exit(not is_right(found))
