"""Private parties reply at times that do not depend on single rows."""

import math
import random
import signal
import subprocess
import sys
from itertools import accumulate
from types import SimpleNamespace

import numpy as np
import pytest

from fedneighbors.errors import PartyRefused
from fedneighbors.federation import _reply_grid
from fedneighbors.federation._masked_party import MaskedParty
from fedneighbors.federation._messages import decode, encode
from fedneighbors.federation._processes import _SECONDS, _run_party
from fedneighbors.federation._reply_grid import delay_to_grid, limit_work
from fedneighbors.federation._roles import Refusal, Refused
from fedneighbors.federation._stores import MemoryStore
from fedneighbors.methods.flynn import flower_app
from fedneighbors.methods.flynn.private._party import PrivateFlyNNParty
from fedneighbors.privacy._policy import Privacy
from fedneighbors.privacy.ledger._ledger import Ledger
from fedneighbors.secure_sum._keys import Identity, Roster
from fedneighbors.tabular._schema import PublicSchemaRequest, Receipt
from tests.federation.grid import ProcessGrid
from tests.federation.test_flower_flynn import PARTIES, folder, node, train
from tests.federation.test_flower_private import LOCAL, SIZES

__all__ = ["folder"]


@pytest.mark.parametrize(
    ("worked_s", "replied_s"), [(0.0, 0.5), (0.2, 0.5), (0.5, 0.5), (0.51, 1.0), (2.5, 4.0)]
)
def test_a_reply_waits_for_the_step_times_a_power_of_two(clock, worked_s, replied_s):
    with delay_to_grid(0.5):
        clock.now += worked_s

    assert clock.now == 1000 + replied_s


def test_an_exception_waits_too(clock):
    def fail():
        with delay_to_grid(0.5):
            clock.now += 0.3
            raise Refused("reason")

    with pytest.raises(Refused):
        fail()

    assert clock.now == 1000.5


def test_without_a_step_nothing_waits(clock):
    with delay_to_grid(0.0):
        clock.now += 0.3

    assert clock.slept == []


@pytest.mark.parametrize(
    ("left_s", "last_s", "worked_s", "replied_s"),
    [
        (3.0, 2.0, 1.5, 2.0),
        (3.0, 2.0, 2.0, 2.0),
        (3.0, 2.0, 2.1, 3.0),  # too late for the last step: at the deadline
        (3.0, 2.0, 3.1, 4.0),  # a long piece of work ends after it: again on the grid
        (2.0, 2.0, 1.9, 2.0),
        (0.4, -np.inf, 0.0, 0.4),
        (-1.0, -np.inf, 0.0, 0.5),
    ],
)
def test_nothing_leaves_between_a_step_and_the_deadline(clock, left_s, last_s, worked_s, replied_s):
    with delay_to_grid(0.5, end=1000 + left_s) as last:
        clock.now += worked_s

    assert last == 1000 + last_s
    assert clock.now == 1000 + replied_s


def test_without_a_step_the_deadline_is_the_last_time():
    for end in (999.0, 1001.5, np.inf):
        with delay_to_grid(0.0, end=end) as last:
            assert last == end


def test_a_fine_grid_never_sleeps_for_negative_time(monkeypatch):
    slept, readings = [], accumulate(iter(random.Random(0).random, None))
    clock = SimpleNamespace(monotonic=readings.__next__, sleep=slept.append)
    monkeypatch.setattr(_reply_grid, "time", clock)

    for _ in range(200):
        with delay_to_grid(1e-300):
            pass

    assert len(slept) == 200
    assert min(slept) >= 0


class Slow:
    """A party that works for some time on every reply, and may fail."""

    name = "north"
    accepts = (PublicSchemaRequest,)
    reply_grid_s = 0.5

    def __init__(self, clock, worked_s, error=None):
        self._clock, self._worked_s, self._error = clock, worked_s, error

    def answer(self, request):
        self._clock.now += self._worked_s
        if self._error:
            raise self._error
        return Receipt()


class Pipe:
    """One request for a party's process; stores the time of the reply."""

    def __init__(self, clock):
        self._clock, self.sent = clock, []
        self._frames = [_SECONDS.pack(math.inf) + encode(PublicSchemaRequest())]

    def recv_bytes(self):
        if not self._frames:
            raise EOFError
        return self._frames.pop()

    def send_bytes(self, frame):
        self.sent.append((self._clock.now, frame))


@pytest.mark.parametrize("worked_s", [0.0, 0.1, 0.5])
@pytest.mark.parametrize("error", [None, Refused("reason"), ValueError("value 4711")])
def test_a_worker_process_replies_on_the_grid(clock, monkeypatch, worked_s, error):
    monkeypatch.setattr("signal.signal", lambda *_: None)
    pipe = Pipe(clock)

    _run_party(Slow(clock, worked_s, error), pipe)

    replied_at, frame = pipe.sent[1]
    assert replied_at == 1000.5
    expected = Refusal if error else Receipt
    assert isinstance(decode(frame[_SECONDS.size :], (expected,)), expected)


def test_private_tables_have_a_grid_also_in_masked_sums():
    privacy = Privacy(epsilon=1, classes=(0, 1), bounds=(0, 1))
    with Ledger(":memory:", party="north") as ledger:
        table = {"x": np.zeros((2, 1)), "y": np.zeros(2), "privacy": privacy, "ledger": ledger}
        private = PrivateFlyNNParty("north", **table)
    identity = Identity.new()
    roster = Roster({"north": identity.public, "south": Identity.new().public})

    masked = MaskedParty(private, identity=identity, roster=roster, store=MemoryStore())

    assert masked.reply_grid_s == private.reply_grid_s == 1.0


@pytest.mark.parametrize(("setting", "step"), [({}, 1.0), ({"reply-grid-s": 30}, 30.0)])
def test_a_node_with_epsilon_replies_on_its_grid(folder, clock, setting, step):
    grid = ProcessGrid(flower_app.client, node(folder, "ann", **LOCAL, **setting))

    with pytest.raises(PartyRefused, match="a key is not set"):  # refused before the table is read
        train(folder, grid, **SIZES, **LOCAL)

    assert clock.now == 1000 + step


def test_a_node_without_epsilon_does_not_wait(folder, clock):
    train(folder, ProcessGrid(flower_app.client, *(node(folder, n) for n in PARTIES)), **SIZES)

    assert clock.slept == []


@pytest.mark.parametrize("step", [0, -1, 601, True, "1", float("nan")])
def test_an_invalid_grid_of_a_node_is_refused(folder, step):
    grid = ProcessGrid(flower_app.client, node(folder, "ann", **{**LOCAL, "reply-grid-s": step}))

    with pytest.raises(PartyRefused, match="reply-grid-s of the node is not a number"):
        train(folder, grid, **SIZES, **LOCAL)


ENDLESS = """
from fedneighbors.federation._reply_grid import limit_work

with limit_work(0.1):
    sum(range(10**15))  # a loop that lets no other Python code run
"""


def test_process_ends_if_its_work_takes_longer_than_the_limit():
    process = subprocess.run([sys.executable, "-c", ENDLESS], check=False)

    assert process.returncode == -signal.SIGALRM


def test_limit_on_work_ends_with_the_work():
    with limit_work(600.0):
        assert signal.getitimer(signal.ITIMER_REAL)[0] > 0

    assert signal.getitimer(signal.ITIMER_REAL)[0] == 0


@pytest.mark.parametrize("limit", [0, -1.0, "1", 1e9])
def test_node_with_an_invalid_limit_on_work_refuses(folder, limit):
    configs = [node(folder, name, **{"max-seconds": limit}) for name in PARTIES]

    with pytest.raises(PartyRefused, match="max-seconds of the node is not a number"):
        train(folder, ProcessGrid(flower_app.client, *configs))
