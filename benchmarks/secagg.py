"""Seconds and bytes of a masked sum against the plain sum of the same counts.

Eight parties hold the counts of the MNIST model (170,128 units, 10 classes). Prints, for counts of
16 bits (what the model sends) and of 32, the CPU seconds of one party and of the coordinator and
the bytes that one party sends, each with its ratio to the plain sum; then what drop-outs cost.
Medians over repeats, one thread; the parties' answers are ready, so that only the sum counts.
"""

import statistics
import time
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from fedneighbors.federation._loop import FrameTransport, run_rounds, total
from fedneighbors.federation._masked_party import MaskedParty
from fedneighbors.federation._masked_sums import MaskedSums
from fedneighbors.federation._masking import MaskInput, MemoryStore
from fedneighbors.federation._messages import message
from fedneighbors.federation._roles import serve
from fedneighbors.secure_sum._keys import Identity, Roster

N_PARTIES = 8
SHAPE = (170_128, 10)
REPEATS = 5


@message
class Counts:
    """The counts of one party."""

    counts: npt.NDArray[np.unsignedinteger[Any]]


@message
class CountsRequest:
    """Request for the counts."""

    reply: ClassVar[type] = Counts


class Ready:
    """A party with precomputed counts."""

    accepts = (CountsRequest,)

    def __init__(self, name, counts):
        self.name = name
        self._counts = counts

    def answer(self, request):  # noqa: ARG002 - there is one request
        """Return the counts."""
        return Counts(self._counts)


class Timed:
    """An exchange that measures each party's time and bytes; some drop out on request."""

    def __init__(self, parties, gone=()):
        self._parties = {party.name: party for party in parties}
        self._gone = gone
        self.seconds = dict.fromkeys(self._parties, 0.0)
        self.n_bytes = dict.fromkeys(self._parties, 0)

    def __call__(self, frames):
        """Serve the parties in turn."""
        answers = {}
        masking = any(MaskInput.__name__.encode() in frame[:20] for frame in frames.values())
        leaving = self._gone if masking else ()  # after their shares, before their masked counts
        for name in frames:
            if name in leaving:
                continue
            start = time.thread_time()
            answers[name] = serve(self._parties[name], frames[name])
            self.seconds[name] += time.thread_time() - start
            self.n_bytes[name] += len(answers[name])
        return answers, {name: "gone" for name in frames if name not in answers}


def ask():
    """Request one sum and return it."""
    replies = yield total(CountsRequest())
    return replies.total.counts


def measure(counts, *, masked, gone=()):
    """Return seconds of party and coordinator, bytes, and sum."""
    parties = [Ready(name, part) for name, part in counts.items()]
    sums = None
    if masked:
        keys = {name: Identity.new() for name in counts}
        roster = Roster({name: key.public for name, key in keys.items()})
        sums = MaskedSums(roster)
        parties = [
            MaskedParty(p, identity=keys[p.name], roster=roster, store=MemoryStore())
            for p in parties
        ]
    exchange = Timed(parties, gone)
    start = time.thread_time()
    outcome = run_rounds(ask(), FrameTransport(exchange, tuple(counts)), sums=sums)
    spent = time.thread_time() - start
    stayed = [name for name in counts if name not in gone]
    return (
        statistics.mean(exchange.seconds[name] for name in stayed),
        spent - sum(exchange.seconds.values()),
        statistics.mean(exchange.n_bytes[name] for name in stayed),
        outcome.result,
    )


def median(counts, **how):
    """Return the medians over repeats, and check that every sum is exact."""
    runs = [measure(counts, **how) for _ in range(REPEATS)]
    gone = how.get("gone", ())
    exact = sum(part.astype(np.int64) for name, part in counts.items() if name not in gone)
    assert all((run[3] == exact).all() for run in runs)
    return [statistics.median(run[place] for run in runs) for place in range(3)]


def main():
    """Print the table."""
    random = np.random.default_rng(0)
    names = [f"party {k}" for k in range(N_PARTIES)]
    print(
        f"{N_PARTIES} parties, {SHAPE[0] * SHAPE[1]:,} cells, medians of {REPEATS}, CPU s (plain)"
    )
    for dtype in ("u2", "u4"):
        counts = {name: random.integers(0, 8000, SHAPE).astype(dtype) for name in names}
        plain = median(counts, masked=False)
        for label, gone in (("", ()), (", 2 drop out", names[-2:])):
            masked = median(counts, masked=True, gone=gone)
            ratios = [there / here for there, here in zip(masked, plain, strict=True)]
            seconds = [
                f"{what} {there:.4f} s ({here:.4f}, x{ratio:.1f})"
                for what, there, here, ratio in zip(
                    ("party", "coordinator"), masked, plain, ratios, strict=False
                )
            ]
            sent = f"sent by one {masked[2]:,.0f} bytes ({plain[2]:,.0f}, x{ratios[2]:.4f})"
            print(f"{dtype}{label}: {', '.join(seconds)}, {sent}")


if __name__ == "__main__":
    main()
