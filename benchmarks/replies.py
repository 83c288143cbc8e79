"""Time of private replies, and attacks that recognize one row by it.

Each case is a pair of neighbouring tables. Both parties are built and answer the same request, in
turn and in random order, from the request to the reply's frame, as at a node. Prints for each case
the medians, and how well an attacker tells the tables apart by one reply (AUC, 95 % confidence
interval by DeLong) and by comparing the two replies of a pair (share of pairs, Wilson interval).
0.5 is a guess. Without a grid, the times are the CPU seconds of the computation, which other
programs hardly disturb; with a grid, replies wait as those of a private party do, and the times are
those of a clock. The ledger is left out: its work depends on the size of a reply, which is the same
for all tables. Without a grid, an added row is seen in the time of a FedKNN search: AUC 0.526,
standard error 0.006, from 5,000 pairs on a busy machine.

Run with ``python benchmarks/replies.py [PAIRS] [GRID_MS] [CASE ...]``; a grid of 0 is none.
"""

import gc
import math
import random
import sys
import time

import numpy as np
from scipy.stats import norm, rankdata

from fedneighbors.federation._messages import encode
from fedneighbors.federation._reply_grid import delay_to_grid
from fedneighbors.federation._roles import serve
from fedneighbors.methods.fedknn._provider import Provider
from fedneighbors.methods.fedknn._queries import decode_query, encode_query
from fedneighbors.methods.fedknn.metrics import metric_of
from fedneighbors.methods.fedknn.private._padding import PaddedBoundRequest, PaddedNearestRequest
from fedneighbors.methods.fedpnn.private._party import PrivateFedPNNParty
from fedneighbors.methods.fedpnn.private.protocol import CellsRequest, ClassSumsRequest
from fedneighbors.methods.flynn._features import FeatureMap
from fedneighbors.methods.flynn.algorithm import HashPlan
from fedneighbors.methods.flynn.private._party import PrivateFlyNNParty
from fedneighbors.methods.flynn.private.protocol import (
    ConstantsRequest,
    NoisyCountRequest,
    PicksRequest,
)
from fedneighbors.methods.knnper.private._party import PrivateKNNPerParty
from fedneighbors.methods.knnper.private.protocol import (
    BeginRequest,
    NoisedCountsRequest,
    PrivateTrainRequest,
)
from fedneighbors.neural._blueprint import perceptron
from fedneighbors.neural._schedule import Regime
from fedneighbors.privacy._policy import Privacy, terms

N_PAIRS = 10_000  # 20,000 replies
TARGET = 0.55
Z = norm.ppf(0.975)
N_ROWS, N_COLUMNS = 256, 32  # few rows, so that one is a large part of the work
PRIVACY = Privacy(epsilon=1, classes=(0, 1), bounds=(0, 255))
PAPER = Privacy(epsilon=1, mechanism="paper", classes=(0, 1), bounds=(0, 255), n_picks=50)
DPSGD = Privacy(epsilon=2, delta=1e-5, classes=(0, 1), bounds=(0, 255))


class NoLedger:
    """A ledger that charges nothing, so that a request can be repeated without end."""

    def release(self, _query, *, draw, **_):
        """Return a new answer."""
        return draw()

    def users_of(self, ids):
        """Return a user for each id, as if it was charged before."""
        return dict.fromkeys(ids, "coordinator")

    def epoch(self, *_):
        """Return the same epoch for all tables."""
        return ""


def table(kind="whole", n_rows=N_ROWS):
    """Return rows of whole numbers or fractions within the bounds, and labels."""
    rng = np.random.default_rng(0)
    x = rng.integers(0, 64, (n_rows, N_COLUMNS)).astype(float)
    return (x if kind == "whole" else x * rng.uniform(0.1, 1.0, x.shape)), np.arange(n_rows) % 2


def with_row(kind, row=None, label=None, *, place=N_ROWS // 2):
    """Return the table with one row replaced."""
    x, y = table(kind)
    if row is not None:
        x[place] = row
    labels = y.astype(object)
    if label is not None:
        labels[place] = label
    return x, labels


ROWS = {
    "fraction": ("whole", np.full(N_COLUMNS, 0.3)),
    "constant": ("fractions", np.full(N_COLUMNS, 7.0)),
    "huge cell": ("fractions", [1e100, *[1.0] * (N_COLUMNS - 1)]),
    "subnormal": ("fractions", np.full(N_COLUMNS, 1e-310)),
    "not finite": ("fractions", np.full(N_COLUMNS, np.nan)),
}


def neighbours(name):
    """Return two tables that differ in one row."""
    if name == "added":
        return table("fractions"), table("fractions", N_ROWS + 1)
    if name == "rare label":
        return with_row("fractions"), with_row("fractions", label="never declared")
    kind, row = ROWS[name]
    return with_row(kind), with_row(kind, row)


PLAN = HashPlan(FeatureMap(N_COLUMNS, "none"), 2000, 16, 32, 7)
BOUNDS = np.zeros(N_COLUMNS), np.full(N_COLUMNS, 255.0)
ORIGIN = np.full(N_COLUMNS, 0.1)
COUNTS = NoisyCountRequest("a", terms(PRIVACY), 1, PLAN, (0, 1), False)
CONSTANTS = ConstantsRequest("a", terms(PRIVACY), 1, *BOUNDS)
PICKS = PicksRequest("a", terms(PAPER), PLAN, (0, 1), False, 50)
SUMS = ClassSumsRequest("a", terms(PRIVACY), 1, (0, 1), ORIGIN)
CELLS = CellsRequest("a", terms(PRIVACY), 1, (0, 1), ORIGIN, ORIGIN)


def table_reply(make, privacy, request):
    """Return a function from a table to its reply."""
    frame = encode(request)

    def of(rows):
        def reply():
            return serve(make("north", *rows, privacy=privacy, ledger=NoLedger()), frame)

        return reply

    return of


NETWORK = perceptron(N_COLUMNS, 2, hidden=(16,), seed=1)
CLASS_COUNTS = NoisedCountsRequest("a", terms(DPSGD), (0, 1), np.empty(0), np.empty(0))
STEPS = BeginRequest("a", terms(DPSGD), (0,), 1, N_ROWS, 1.0)  # one step
ROUND = encode(
    PrivateTrainRequest("a", 0, Regime(learning_rate=0.1, momentum=0.0), 40, NETWORK.initial)
)


def make_client(name, x, y, **others):
    """Return a private kNN-Per client."""
    return PrivateKNNPerParty(name, x, y, NETWORK, **others)


def round_reply(rows):
    """Return a function for the reply to one round of private training."""
    party = make_client("north", *rows, privacy=DPSGD, ledger=NoLedger())
    party.answer(CLASS_COUNTS)
    party._noised_n_rows = N_ROWS  # the same noise for both tables: the same steps
    party.answer(STEPS)
    return lambda: serve(party, ROUND)


QUERY = encode_query(np.full(N_COLUMNS, 128.0))


def search_reply(rows):
    """Return a function for a provider's replies to one private search."""
    provider = Provider("north", rows[0], metric_of("euclidean"), decode=decode_query)
    frames = [
        encode(PaddedBoundRequest("q", QUERY, 16, 0.0)),
        encode(PaddedNearestRequest("q", QUERY, np.array([12]), 16, 0.0)),
    ]

    def reply():
        provider._open.clear()
        return [serve(provider, frame) for frame in frames]

    return reply


KINDS = {
    "FlyNN counts": (table_reply(PrivateFlyNNParty, PRIVACY, COUNTS), [*ROWS, "added"]),
    "FlyNN constants": (table_reply(PrivateFlyNNParty, PRIVACY, CONSTANTS), ["subnormal", "added"]),
    "FlyNN picks": (table_reply(PrivateFlyNNParty, PAPER, PICKS), ["constant", "added"]),
    "FedPNN class sums": (
        table_reply(PrivateFedPNNParty, PRIVACY, SUMS),
        ["huge cell", "subnormal", "rare label", "added"],
    ),
    "FedPNN cells": (table_reply(PrivateFedPNNParty, PRIVACY, CELLS), ["huge cell", "added"]),
    "kNN-Per counts": (table_reply(make_client, DPSGD, CLASS_COUNTS), ["rare label", "added"]),
    "kNN-Per round": (round_reply, ["huge cell", "subnormal", "not finite", "rare label", "added"]),
    "FedKNN search": (search_reply, ["constant", "huge cell", "added"]),
}


def reply_times(replies, n_pairs, grid_s):
    """Return the seconds of replies, an array of shape (2, n_pairs)."""
    times = np.empty((2, n_pairs))
    order = random.Random(0)
    clock = time.perf_counter if grid_s else time.thread_time
    for _ in range(20):
        for reply in replies:
            reply()
    gc.disable()
    for i in range(n_pairs):
        for which in order.sample((0, 1), 2):
            started = clock()
            with delay_to_grid(grid_s):
                replies[which]()
            times[which, i] = clock() - started
        if i % 100 == 0:
            gc.collect()
    gc.enable()
    return times


def auc(times):
    """Return the AUC of single times and its half width (DeLong)."""
    first, second = times
    n = len(first)
    ranks = rankdata(np.concatenate([first, second]))
    above = (ranks[n:] - rankdata(second)) / n  # share of the first that each second exceeds
    below = 1 - (ranks[:n] - rankdata(first)) / n
    return above.mean(), Z * math.sqrt((above.var(ddof=1) + below.var(ddof=1)) / n)


def paired(times):
    """Return the share of slower second replies and its half width."""
    first, second = times
    n, share = len(first), float(((second > first) + 0.5 * (second == first)).mean())
    width = Z * math.sqrt(share * (1 - share) / n + Z**2 / (4 * n**2)) / (1 + Z**2 / n)
    return share, width


def main(n_pairs=N_PAIRS, grid_ms=0.0, names=()):
    """Print one line per case."""
    print(f"{n_pairs} pairs of replies, grid {grid_ms:g} ms")
    print(f"{'reply':20s}{'row':13s}{'ms':>8s}{'ms':>8s}  {'AUC':16s}{'pairs':16s}target {TARGET}")
    for kind, (make, rows) in KINDS.items():
        for name in rows:
            if names and f"{kind} {name}" not in names and kind not in names:
                continue
            times = reply_times([make(rows) for rows in neighbours(name)], n_pairs, grid_ms / 1e3)
            medians = 1e3 * np.median(times, axis=1)
            attacks = [(max(a, 1 - a), width) for a, width in (auc(times), paired(times))]
            verdict = "met" if all(a <= TARGET for a, _ in attacks) else "MISSED"
            shown = "".join(f"{a:6.3f} ± {width:.3f} " for a, width in attacks)
            print(f"{kind:20s}{name:13s}{medians[0]:8.3f}{medians[1]:8.3f}  {shown}{verdict}")
            sys.stdout.flush()


if __name__ == "__main__":
    given = sys.argv[1:]
    main(*[kind(value) for kind, value in zip((int, float), given, strict=False)], given[2:])
