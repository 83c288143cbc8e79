"""CPU seconds and bytes of a masked sum, compared with the plain sum of the same counts.

Eight parties hold counts of the size of the MNIST model (170,128 units, 10 classes). Prints, for
counts of 16 bits (which the model sends) and of 32 bits, the CPU seconds of one party and of the
coordinator, and the bytes that one party sends, each with its ratio to the plain sum; without and
with two drop-outs. Values are medians over repeats, in one thread. The parties' counts are
precomputed, so that only the sum is measured.
"""

import statistics
import time
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from fedneighbors.federation._loop import FrameTransport, run_rounds, total
from fedneighbors.federation._masked_party import MaskedParty
from fedneighbors.federation._masked_sums import MaskedSums
from fedneighbors.federation._masking import MaskInput
from fedneighbors.federation._messages import message
from fedneighbors.federation._roles import serve
from fedneighbors.federation._stores import MemoryStore
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


class PrecomputedParty:
    """A party with precomputed counts."""

    accepts = (CountsRequest,)

    def __init__(self, name, counts):
        self.name = name
        self._counts = counts

    def answer(self, request):  # noqa: ARG002 - there is one request
        """Return the counts."""
        return Counts(self._counts)


class TimedExchange:
    """An exchange that measures each party's CPU time and bytes, and simulates drop-outs."""

    def __init__(self, parties, dropped_out=()):
        self._parties = {party.name: party for party in parties}
        self._dropped_out = dropped_out
        self.seconds = dict.fromkeys(self._parties, 0.0)
        self.n_bytes = dict.fromkeys(self._parties, 0)

    def __call__(self, frames):
        """Serve the parties one after another; return replies and errors by name."""
        answers = {}
        masking = any(MaskInput.__name__.encode() in frame[:20] for frame in frames.values())
        # parties that drop out after their key shares, before their masked counts
        silent = self._dropped_out if masking else ()
        for name in frames:
            if name in silent:
                continue
            start = time.thread_time()
            answers[name] = serve(self._parties[name], frames[name])
            self.seconds[name] += time.thread_time() - start
            self.n_bytes[name] += len(answers[name])
        return answers, {name: "dropped out" for name in frames if name not in answers}


def request_sum():
    """Request one sum and return it."""
    replies = yield total(CountsRequest())
    return replies.total.counts


def measure(counts, *, masked, dropped_out=()):
    """Return mean seconds of a party, coordinator seconds, bytes and sum."""
    parties = [PrecomputedParty(name, part) for name, part in counts.items()]
    sums = None
    if masked:
        keys = {name: Identity.new() for name in counts}
        roster = Roster({name: key.public for name, key in keys.items()})
        sums = MaskedSums(roster)
        parties = [
            MaskedParty(p, identity=keys[p.name], roster=roster, store=MemoryStore())
            for p in parties
        ]
    exchange = TimedExchange(parties, dropped_out)
    start = time.thread_time()
    run_result = run_rounds(request_sum(), FrameTransport(exchange, tuple(counts)), sums=sums)
    total_seconds = time.thread_time() - start
    survivors = [name for name in counts if name not in dropped_out]
    return (
        statistics.mean(exchange.seconds[name] for name in survivors),
        total_seconds - sum(exchange.seconds.values()),
        statistics.mean(exchange.n_bytes[name] for name in survivors),
        run_result.result,
    )


def median_costs(counts, **options):
    """Return the medians over repeats, and check that every sum is exact."""
    runs = [measure(counts, **options) for _ in range(REPEATS)]
    dropped_out = options.get("dropped_out", ())
    expected = sum(
        part.astype(np.int64) for name, part in counts.items() if name not in dropped_out
    )
    assert all((run[3] == expected).all() for run in runs)
    return [statistics.median(run[index] for run in runs) for index in range(3)]


def main():
    """Print the table."""
    random = np.random.default_rng(0)
    names = [f"party {k}" for k in range(N_PARTIES)]
    print(
        f"{N_PARTIES} parties, {SHAPE[0] * SHAPE[1]:,} cells, medians of {REPEATS}, CPU s (plain)"
    )
    for dtype in ("u2", "u4"):
        counts = {name: random.integers(0, 8000, SHAPE).astype(dtype) for name in names}
        plain = median_costs(counts, masked=False)
        for label, dropped_out in (("", ()), (", 2 drop out", names[-2:])):
            masked = median_costs(counts, masked=True, dropped_out=dropped_out)
            ratios = [
                masked_value / plain_value
                for masked_value, plain_value in zip(masked, plain, strict=True)
            ]
            seconds = [
                f"{role} {masked_value:.4f} s ({plain_value:.4f}, x{ratio:.1f})"
                for role, masked_value, plain_value, ratio in zip(
                    ("party", "coordinator"), masked, plain, ratios, strict=False
                )
            ]
            bytes_text = (
                f"sent by one party {masked[2]:,.0f} bytes ({plain[2]:,.0f}, x{ratios[2]:.4f})"
            )
            print(f"{dtype}{label}: {', '.join(seconds)}, {bytes_text}")


if __name__ == "__main__":
    main()
