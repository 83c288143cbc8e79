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
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fedneighbors.federation._messages import decode, encode
from fedneighbors.service import BrokerUnreachable, ServiceError
from fedneighbors.service._messages import LinkReplies
from tests.service.deployment import deployed, offered

OWNERS = ("north", "south")
POINTS = np.arange(60.0)[:, np.newaxis]
BYTE_FAULTS = ("cut", "half", "stall", "garbage", "delay")
MESSAGE_FAULTS = ("drop", "twice", "swap", "truncate", "epoch", "number", "delay")
DIRECTIONS = ("to provider", "to broker")
ALGORITHMS = ("baseline", "dann", "eager", "hufu+", "dann*")
PARTIAL = "dann, partial"  # with allow_partial
DEADLINE_S, LATE_S, DELAY_S, RECOVERY_S, START_S = 1.0, 0.1, 0.3, 5.0, 30.0
# codes for an honest provider behind a bad link
HONEST = {"provider-missing", "provider-restarted", "deadline-passed"}
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
            if kind != "epoch" or direction == "to broker":  # requests have no epoch
                yield Fault(level, kind, direction, position)


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


class MessageFaults:
    """Changes whole messages of a provider's link, in the broker."""

    def __init__(self, link):
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
            case "epoch" | "number":
                return [_replace(frame, fault.kind)], 0.0
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
    """Return a message with other epochs or numbers, unchanged if it has none."""
    if b"LinkReplies" not in frame[:40]:
        return frame
    found = decode(frame, (LinkReplies,))
    if field == "epoch":
        return encode(
            LinkReplies(
                found.numbers, found.busy_us, found.bodies, (b"x" * 16,) * len(found.numbers)
            )
        )
    numbers = tuple(number + 1_000_000 for number in found.numbers)
    return encode(LinkReplies(numbers, found.busy_us, found.bodies, found.epochs))


class Campaign:
    """Runs queries during faults, and checks what users get."""

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
        """Run a query during a fault, or raise AssertionError.

        Returns
        -------
        outcome : str
            ``"exact"``, ``"partial"``, or the code of an error.
        seconds, recovery_s, delay_s : float
            Seconds to the outcome, from there to the right answer, and by which the event loop of
            broker and providers was late meanwhile.
        """
        self.deployment.wait(*OWNERS)
        link = self.deployment.broker.registry.links["north"]
        if link is not self._link:
            self._link, self._messages = link, MessageFaults(link)
        private, query = algorithm == "dann*", 0.3 + next(self._queries) / 64
        charged = self._count_charges()
        (self.relay if fault.level == "bytes" else self._messages).arm(fault)
        with self._client(private, algorithm) as client:
            self.delay.take()
            started = time.monotonic()
            outcome = self._ask(client, query)
        seconds, delay_s = time.monotonic() - started, self.delay.take()
        self.relay.arm(None)
        self._messages.arm(None)
        assert outcome in HONEST | {"exact", "partial", UNREACHABLE}, outcome
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
        return outcome, seconds, recovery_s, delay_s

    def _client(self, private, algorithm, deadline_s=DEADLINE_S):
        name, _, partial = algorithm.partition(",")
        options = {} if private else {"algorithm": name, "allow_partial": bool(partial)}
        name = "private" if private else "points"
        return self.deployment.client(name, deadline_s=deadline_s, **options)

    def _ask(self, client, query):
        """Return "exact" or "partial" for a right answer, or the code of an error."""
        try:
            distances, objects = client.kneighbors([[query]], 5)
        except ServiceError as error:
            if error.party != "north":
                raise AssertionError(f"{error.code} of {error.party}") from None
            return error.code
        except BrokerUnreachable:
            return UNREACHABLE
        missing = client.results_[0]["missing"]
        if not set(missing) <= ({"north"} if client.allow_partial else set()):
            raise AssertionError(f"missing: {missing}")
        present = POINTS[1::2, 0] if missing else POINTS[:, 0]  # those of south have odd rows
        expected = np.sort(np.abs(present - query))[:5]
        assert client.results_[0]["exact"] == (not missing)
        np.testing.assert_array_equal(distances[0], expected, "a wrong answer")
        found = [abs(POINTS[int(one.id), 0] - query) for one in objects[0]]
        np.testing.assert_array_equal(found, expected, "wrong objects")
        return "partial" if missing else "exact"

    def _count_charges(self):
        ledger = self.deployment.broker.collections["private"].ledger
        return sum(entry.kind == "released" for entry in ledger.entries())


def main(n_positions=6):
    """Run every fault with every algorithm; print a summary."""
    outcomes, failed, late, recoveries = Counter(), [], [], [0.0]
    with tempfile.TemporaryDirectory() as folder:
        campaign = Campaign(Path(folder))
        cases = list(itertools.product((*ALGORITHMS, PARTIAL), all_faults(n_positions)))
        for number, (algorithm, fault) in enumerate(cases):
            try:
                outcome, seconds, recovery_s, delay_s = campaign.run(fault, algorithm)
            except AssertionError as error:
                failed.append([algorithm, str(fault), str(error)])
                continue
            outcomes[f"{fault.level} {fault.kind}: {outcome}"] += 1
            recoveries.append(recovery_s)
            if seconds > DEADLINE_S + LATE_S:
                late.append([algorithm, str(fault), outcome, round(seconds, 3), round(delay_s, 3)])
            if sys.stderr.isatty():
                print(f"\r{number + 1} of {len(cases)}", end="", file=sys.stderr)
        campaign.close()
    summary = {
        "cases": len(cases),
        "outcomes": dict(sorted(outcomes.items())),
        "failed": failed,
        "late: seconds, delay of the loop": late,
        "longest recovery (s)": round(max(recoveries), 2),
        "load": os.getloadavg(),
    }
    print(json.dumps(summary, indent=1))
    return not failed and max(recoveries) <= RECOVERY_S


if __name__ == "__main__":
    sys.exit(not main())
