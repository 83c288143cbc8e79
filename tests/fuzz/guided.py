"""Fuzz the decoder of frames and the handlers behind it, guided by coverage (atheris).

``python -m tests.fuzz.guided decoder --inputs 1000000`` prints a JSON object: the number of inputs
and the faults. An input of ``replies`` is what a hostile provider sends during a query of a real
broker; one of ``requests`` is what a hostile broker sends to a real provider.
"""

import argparse
import asyncio
import dataclasses
import json
import logging
import os
import pkgutil
import random
import signal
import sys
import tempfile
import time
import traceback
from contextlib import ExitStack, suppress
from pathlib import Path

import atheris

import fedneighbors.kernels

# numba cannot compile instrumented functions
_KERNELS = pkgutil.walk_packages(fedneighbors.kernels.__path__, "fedneighbors.kernels.")
_COMPILED = [*(module.name for module in _KERNELS), "fedneighbors.privacy.noise._samplers"]

with atheris.instrument_imports(include=["fedneighbors"], exclude=_COMPILED):
    import numpy as np

    from fedneighbors.errors import WireError
    from fedneighbors.federation._messages import decode, encode
    from fedneighbors.federation._roles import FAILED, Refusal, Refused
    from fedneighbors.methods.fedknn import _batch, _eager, _names, _payloads, _queries, protocol
    from fedneighbors.methods.fedknn import _provider as fedknn
    from fedneighbors.methods.fedknn._queries import encode_query
    from fedneighbors.methods.fedknn.private import _padding
    from fedneighbors.secure_sum._keys import Identity
    from fedneighbors.service import _messages as link
    from fedneighbors.service._access_log import AccessLog
    from fedneighbors.service._broker import Broker
    from fedneighbors.service._config import BrokerConfig, PolicySection
    from fedneighbors.service._offers import OfferedObjects
    from fedneighbors.service._operations import OPERATIONS, perform_query
    from fedneighbors.service._problems import Problem, encode_json
    from fedneighbors.service._provider import ProviderService
    from fedneighbors.service._server import add_local_provider
    from fedneighbors.service._state import open_state
    from tests.fuzz.mutation import mutate
    from tests.fuzz.odd_values import change_field
    from tests.service.deployment import offered

MAX_BYTES = 2048
MAX_S, MAX_MIB = 10, 2048  # for one input, and for the process
MAX_FAULTS = 50
INVALID = (ValueError, TypeError, AttributeError, ArithmeticError, LookupError, WireError)
MODULES = link, protocol, _batch, _eager, _names, _payloads, _queries, _padding
_FOUND = {
    one.__name__: one
    for module in MODULES
    for one in vars(module).values()
    if isinstance(one, type) and dataclasses.is_dataclass(one)
    if one.__module__ == module.__name__
}
CLASSES = (*_FOUND.values(), Refusal)

OWNERS = ("north", "south")
KINDS = {"age": "number"}
POINTS = np.arange(24.0).reshape(12, 2) % 7
WORDS = ["cat", "car", "dog", "dot", "cart", "do"]
_NEAREST = {"query": [1.0, 2.5], "k": 3}
QUERIES = [
    *(
        ("points", "search", {**_NEAREST, "algorithm": name})
        for name in ("baseline", "dann", "eager", "hufu", "hufu+", "auto")
    ),
    ("points", "search", {**_NEAREST, "payload": True, "algorithm": "eager"}),
    ("points", "search", {**_NEAREST, "allow_partial": True, "algorithm": "dann"}),
    ("points", "search", {"query": [1.0, 2.5], "radius": 2.0}),
    ("points", "search", {**_NEAREST, "where": {"age": {">": 2}}, "algorithm": "dann"}),
    ("points", "count", {"query": [1.0, 2.5], "radius": 2.0}),
    ("points", "count", {"where": {"age": {">": 2}}}),
    ("words", "search", {"query": "cot", "k": 2, "algorithm": "dann"}),
    ("private", "search", _NEAREST),
    ("points", "explain", _NEAREST),
]
# Codes for users of a provider that breaks the protocol; their query is valid.
TYPED = {"provider-failed", "provider-refused", "provider-missing", "provider-restarted"}
TYPED |= {"source-failed", "deadline-passed", "log-failed", "few-filtered", "not-allowed"}
TYPED |= {"quota-spent", "too-many-objects", "budget-exceeded"}


class Fault(Exception):  # noqa: N818 - the name states the error
    """An input had a result that no input may have."""


class Decoder:
    """Decodes a frame as any message, which is encoded again."""

    def __init__(self, folder, stack):
        replies, requests = Replies(folder / "a", stack), Requests(folder / "b", stack)
        frames = {seed[2:] for one in (replies, requests) for seed in one.seeds()}
        self._seeds = sorted(frames)

    def seeds(self):
        """Return valid inputs."""
        return self._seeds

    def read(self, data):
        """Read an input; raise for a fault."""
        try:
            item = decode(data, CLASSES)
        except WireError:
            return
        if encode(item) != data:
            raise Fault("a frame that is not canonical was accepted")


def make_offers(owner, *, policy=None, log=None):
    """Return the collections of a provider."""
    part = slice(OWNERS.index(owner), None, 2)
    rows, ages = POINTS[part], list(range(12))[part]
    options = {"ids": [f"{owner}-{age}" for age in ages], "tie_key": "0"}
    columns = {"columns": {"age": ages}, "filters": KINDS}
    made = {
        "points": offered(owner, "points", "euclidean", rows, **options, **columns),
        "words": offered(owner, "words", "edit", WORDS[part], tie_key="0"),
        "private": offered(owner, "private", "euclidean", rows, epoch="0" * 32, **options),
    }
    if policy is None:
        return made
    return {
        name: OfferedObjects(one.party, one.offer, policy=policy, log=log)
        for name, one in made.items()
    }


class Replies:
    """A query of a real broker, and a provider that sends one hostile frame during it.

    The first byte of an input chooses the query, the second the exchange and whether the frame is a
    reply, comes before a right reply, or is a hello.
    """

    def __init__(self, folder, stack):
        folder.mkdir(parents=True)
        shared = {"metric": "euclidean", "providers": OWNERS, "tie_key": "0"}
        privacy = {"epsilon": 1.0, "delta": 1e-9, "grid_s": 0.0, "max_queries": 10**6}
        config = BrokerConfig.model_validate(
            {
                "format": 1,
                "folder": folder,
                "server": {"tls": False},
                "queries": {"deadline_s": 1.0, "max_k": 100, "retries": 0},
                "collections": {
                    "points": {**shared, "filters": KINDS},
                    "words": {**shared, "metric": "edit"},
                    "private": {**shared, "algorithm": "dann*", "privacy": privacy},
                },
            }
        )
        state, _ = open_state(config)
        stack.callback(state.close)
        self.broker = Broker(config, state, b"")
        stack.callback(self.broker.log.close)
        self.loop = asyncio.new_event_loop()
        stack.callback(self.loop.close)
        self.identities = {name: Identity.new() for name in OWNERS}
        for name, identity in self.identities.items():
            add_local_provider(state, name, identity)
        self.offers = {name: make_offers(name) for name in OWNERS}
        self.frames, self.hostile, self.mode, self.position = [], b"", -1, -1

    def seeds(self):
        """Return the right reply of each exchange of each query, and a hello."""
        found = []
        for number in range(len(QUERIES)):
            self.loop.run_until_complete(self._run(number))
            if self.failure is not None:
                raise self.failure
            for position, frame in enumerate(self.frames):
                found += [bytes([number, 4 * position]) + frame]
                whole = encode(link.LinkReplies((1,), (1,), (frame,), (b"",)))
                found += [bytes([number, 4 * position + 1]) + whole]
        offers = tuple(one.offer for one in self.offers["north"].values())
        for mode, item in ((1, link.ChangedOffers(offers)), (2, link.Hello("north", offers, b""))):
            found.append(bytes([0, mode]) + encode(item))
        return found

    def read(self, data):
        """Run a query with a hostile frame; raise for a fault."""
        if len(data) < 3:
            return
        self.hostile, self.mode, self.position = data[2:], data[1] % 4, data[1] // 4 % 8
        try:
            self.loop.run_until_complete(self._run(data[0] % len(QUERIES)))
        finally:
            self.mode = -1
        if self.failure is not None:
            raise self.failure

    async def _run(self, number):
        self.failure, self.frames = None, []
        registry = self.broker.registry
        for name in OWNERS:
            await registry.add(self._connect(name))
        collection, kind, body = QUERIES[number]
        content = json.dumps(body).encode()
        try:
            answer = await perform_query(
                self.broker, OPERATIONS[kind], collection, content, "q", user="u", groups=()
            )
            encode_json(answer)
        except Problem as problem:
            encode_json(problem.content)
            if problem.content["code"] not in TYPED:
                cause = problem.__context__ or problem
                self.failure = Fault(f"{problem.content['code']}: {problem}")
                self.failure.__cause__ = cause
        except Exception as error:
            self.failure = error
        for one in list(registry.links.values()):
            registry.remove(one, "the test ends")
        for offers in self.offers.values():
            for one in offers.values():
                one.close_all()

    def _connect(self, name):
        """Return the link of a provider, whose hello may be the hostile frame."""
        nonce, registry = b"n" * 32, self.broker.registry
        sent = []

        async def send(frame):
            sent[0](frame)

        offers = tuple(one.offer for one in self.offers[name].values())
        identity = self.identities[name]
        if name == "north" and self.mode == 2:
            try:
                hello = decode(self.hostile, (link.Hello,))
                signature = identity.sign(hello.content(nonce, b""))
                frame = encode(link.Hello(hello.provider, hello.collections, signature))
            except WireError:
                frame = self.hostile
            try:
                found = registry.accept(frame, nonce, send)
                sent.append(lambda frame: self._serve(name, found, frame))
                return found
            except Refused:
                pass
        challenge = link.Challenge(link.VERSION, nonce)
        hello = link.Hello.signed(name, offers, identity, challenge=challenge, fingerprint=b"")
        found = registry.accept(encode(hello), nonce, send)
        sent.append(lambda frame: self._serve(name, found, frame))
        return found

    def _serve(self, name, found, frame):
        """Answer the requests of a link as its provider does."""
        for body in decode(frame, (link.LinkRequests,)).frames:
            request = decode(body, (link.LinkRequest,))
            offer = self.offers[name][request.collection]
            reply = offer.answer(request, time.monotonic() + 5)
            if name == "north":
                reply = self._replace(found, request.number, reply)
            epoch = offer.party.epoch_of(request.query)
            if reply is not None and found.is_open:
                found.receive(encode(link.LinkReplies((request.number,), (1,), (reply,), (epoch,))))

    def _replace(self, found, number, reply):
        """Return the reply that is sent in place of a right one; None for a closed link."""
        position = len(self.frames)
        self.frames.append(reply)
        if self.mode < 0 or position != self.position or self.mode == 2:
            return reply
        if self.mode == 0:
            return self.hostile
        frame = self.hostile
        if self.mode == 3:  # replies to this request
            try:
                item = decode(frame, (link.LinkReplies,))
                numbers = (number,) * len(item.numbers)
                frame = encode(link.LinkReplies(numbers, item.busy_us, item.bodies, item.epochs))
            except WireError:
                pass
        try:
            found.receive(frame)
        except WireError:  # the server closes the link
            self.broker.registry.remove(found, "the test ends")
            return None
        except Refused as error:
            asyncio.get_running_loop().create_task(found.reject(error))
            return None
        return reply


class Requests:
    """A real provider, and a broker that sends one hostile frame.

    The first byte of an input chooses the collection, the second whether the frame is a whole
    message or the body of a request, whose query may be open.
    """

    def __init__(self, folder, stack):
        folder.mkdir(parents=True)
        log = AccessLog(folder / "log.sqlite")
        stack.callback(log.close)
        quotas = {"queries_per_day": 10**9, "views_per_day": 10**9}
        limits = {"max_k": 100, "min_count": 2, "max_radius": 9.0, "distance_step": 0.5}
        limited = PolicySection.model_validate({**quotas, **limits})
        self.services = [
            ProviderService("north", Identity.new(), make_offers("north")),
            ProviderService("north", Identity.new(), make_offers("north", policy=limited, log=log)),
        ]
        self.names = ("points", "words", "private")
        for service in self.services:
            for pool in service._pools.values():
                pool.shutdown()

    def seeds(self):
        """Return a request of each kind."""
        point, word = encode_query(np.array([1.0, 2.5])), encode_query("cot")
        filtered = encode(_queries.FilteredQuery(point, '{"age":{">":2}}'))
        bodies = [
            (0, protocol.NearestRequest("q", point, 3, None)),
            (0, protocol.NearestRequest("q", filtered, 3, 2.0, 5)),
            (1, protocol.NearestRequest("q", word, 3, None)),
            (0, protocol.BoundRequest("q", point, 3, 0.5)),
            (0, protocol.RangeCountRequest("q", point, 2.0)),
            (0, protocol.RangeCountRequest("q", filtered, None)),
            (0, _eager.EagerRequest("q", point, 3, None)),
            (0, _payloads.PayloadRequest("q", point, ("north-0",))),
            (0, _batch.NearestBatchRequest(POINTS[:2], 2)),
            (0, protocol.FinishRequest(("q",))),
            (2, _padding.PaddedBoundRequest("q", point, 3, 0.0)),
            (2, _padding.PaddedNearestRequest("q", point, np.array([3]), 3, 0.0)),
        ]
        found = []
        for number, item in bodies:
            frame = encode(item)
            one = link.LinkRequest(1, self.names[number], "q", 0, 900, frame, "u")
            whole = link.LinkRequests(("p",), (encode(one), encode(one)))
            found += [bytes([number, mode]) + frame for mode in (0, 1, 4, 5)]
            found += [bytes([number, mode]) + encode(whole) for mode in (2, 6)]
        return found

    def read(self, data):
        """Let the provider answer a frame; raise for a fault."""
        if len(data) < 3:
            return
        service = self.services[data[1] // 4 % 2]
        name, frame = self.names[data[0] % 3], data[2:]
        try:
            if data[1] & 2:
                received = decode(frame, (link.LinkRequests, Refusal))
                if isinstance(received, Refusal):
                    return
                for place, waiting in service._sort(received).items():
                    self._answer(service, place, waiting, received.closed)
                return
            requests = self._make_requests(service, name, frame, is_open=data[1] & 1)
            received = link.LinkRequests((), tuple(map(encode, requests)))
            for place, waiting in service._sort(received).items():
                self._answer(service, place, waiting, ())
        except WireError:
            return
        finally:
            for one in service._collections.values():
                one.close_all()

    def _make_requests(self, service, name, frame, *, is_open):
        """Return a request with a hostile body, perhaps after a valid one."""
        query = "q"
        with suppress(WireError):
            query = str(getattr(decode(frame, fedknn.Provider.accepts), "name", "q"))
        requests = [link.LinkRequest(2, name, query, is_open, 900, frame, "u")]
        if is_open:
            item = encode_query("cot" if name == "words" else np.array([1.0, 2.5]))
            first = encode(protocol.NearestRequest(query, item, 2, None))
            requests.insert(0, link.LinkRequest(1, name, query, 0, 900, first, "u"))
        return requests

    def _answer(self, service, name, waiting, closed):
        while waiting or closed:
            frame = service._answer(name, waiting, closed)
            closed = ()
            if frame:
                for body in decode(frame, (link.LinkReplies,)).bodies:
                    if body == _FAILED:
                        raise Fault("a party failed")


_FAILED = encode(Refusal(FAILED, ""))
TARGETS = {"decoder": Decoder, "replies": Replies, "requests": Requests}


class Failures(logging.Handler):
    """Keeps the tracebacks of parties that failed."""

    def __init__(self):
        super().__init__(logging.ERROR)
        self.last = ""

    def emit(self, record):
        self.last = record.getMessage()


def place_of(error):
    """Return the type, the text and the innermost functions of an error."""
    cause = error.__cause__ if isinstance(error, Fault) and error.__cause__ else error
    frames = traceback.extract_tb(cause.__traceback__)
    own = [f for f in frames if "/fedneighbors/" in f.filename] or frames
    where = " < ".join(f"{Path(f.filename).name}:{f.lineno} {f.name}" for f in own[:-5:-1])
    return f"{type(cause).__name__}: {str(error)[:200]} {where}"


def make_changer(seeds):
    """Return a function that changes an input: bytes, or fields of its message."""

    def change(data, max_size, seed):
        rng = random.Random(seed)
        kind = rng.randrange(8)
        if kind < 5:
            return atheris.Mutate(data, max_size)
        head, frame = (data[:2], data[2:]) if data[2:5] == b"FNM" else (b"", data)
        if kind < 7:
            return mutate(data, rng, seeds)[:max_size]
        if head and rng.random() < 0.2:
            head = bytes(rng.choice((byte, byte ^ 1, rng.randrange(256))) for byte in head)
        try:
            changed = encode(change_field(decode(frame, CLASSES), rng))
        except INVALID:
            changed = mutate(frame, rng, seeds)
        return (head + changed)[:max_size]

    return change


def fuzz(name, *, inputs, seed, folder, stack):
    """Run a target in this process, which ends with the last input or when it is told to."""
    fedknn.MAX_CELLS = 1 << 20
    target = TARGETS[name](folder / "target", stack)
    failures, faults, started = Failures(), {}, time.monotonic()
    log = logging.getLogger("fedneighbors")
    log.propagate, log.handlers = False, [failures]
    seeds, n_read = target.seeds(), 0
    corpus = folder / "corpus"
    corpus.mkdir()
    for number, one in enumerate(seeds):
        (corpus / str(number)).write_bytes(one)

    is_ended = []
    signal.signal(signal.SIGTERM, lambda *_: is_ended.append(True))

    def read(data):
        nonlocal n_read
        n_read += 1
        try:
            target.read(data)
        except Exception as error:
            place = f"{place_of(error)} {failures.last[-300:]}".strip()
            faults.setdefault(place, data.hex())
            failures.last = ""
        if n_read >= inputs or len(faults) >= MAX_FAULTS or is_ended:
            seconds = round(time.monotonic() - started, 1)
            found = {"target": name, "inputs": n_read, "seconds": seconds, "faults": faults}
            print(json.dumps(found, indent=1), flush=True)
            stack.close()
            os._exit(bool(faults))

    options = [f"-seed={seed}", f"-max_len={MAX_BYTES}", f"-timeout={MAX_S}"]
    options += [f"-rss_limit_mb={MAX_MIB}", "-verbosity=0", "-handle_term=0"]
    options += [f"-artifact_prefix={folder}/"]
    atheris.Setup([sys.argv[0], *options, str(corpus)], read, custom_mutator=make_changer(seeds))
    atheris.Fuzz()


def main():
    """Read the command line, and run a target."""
    parser = argparse.ArgumentParser()
    parser.add_argument("target", choices=TARGETS)
    parser.add_argument("--inputs", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        fuzz(
            arguments.target,
            inputs=arguments.inputs,
            seed=arguments.seed,
            folder=folder,
            stack=stack,
        )


if __name__ == "__main__":
    main()
