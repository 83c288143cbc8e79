"""Time of private replies, and attacks that recognize one row by that time.

Each case is a pair of neighboring tables. For every pair of replies a party is built from each
table, and both answer the same request in random order; the parties of kNN-Per and FedKNN are built
once. The time ends with the reply's frame. Prints for each case the medians, and two scores of an
attacker who tells the tables apart: by one reply (AUC, 95 % confidence interval by DeLong), and by
comparing the two replies of a pair (fraction of pairs, Wilson interval). A guess scores 0.5.

Without a grid, times are CPU seconds, which other programs hardly disturb; with a grid, replies
wait like those of a private party, and times are wall-clock seconds. The ledger is left out: its
work depends on the size of a reply, which is the same for all tables. Without a grid, an added row
is visible in the time of most requests: AUC up to 0.72 in 20,000 pairs.

Run ``python benchmarks/replies.py [PAIRS] [GRID_MS] [CASE ...]``; 0 means no grid.
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
        """Return a user for each id, as after an earlier charge."""
        return dict.fromkeys(ids, "coordinator")

    def epoch(self, *_):
        """Return the same epoch for all tables."""
        return ""


def draw_table(kind="whole", n_rows=N_ROWS):
    """Return rows of whole numbers or fractions within the bounds, and labels."""
    rng = np.random.default_rng(0)
    x = rng.integers(0, 64, (n_rows, N_COLUMNS)).astype(float)
    return (x if kind == "whole" else x * rng.uniform(0.1, 1.0, x.shape)), np.arange(n_rows) % 2


def replace_row(kind, row=None, label=None, *, place=N_ROWS // 2):
    """Return the table with one row replaced."""
    x, y = draw_table(kind)
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


def make_neighbors(name):
    """Return two tables that differ in one row."""
    if name == "added":
        return draw_table("fractions"), draw_table("fractions", N_ROWS + 1)
    if name == "rare label":
        return replace_row("fractions"), replace_row("fractions", label="never declared")
    kind, row = ROWS[name]
    return replace_row(kind), replace_row(kind, row)


PLAN = HashPlan(FeatureMap(N_COLUMNS, "none"), 2000, 16, 32, 7)
BOUNDS = np.zeros(N_COLUMNS), np.full(N_COLUMNS, 255.0)
ORIGIN = np.full(N_COLUMNS, 0.1)
COUNTS = NoisyCountRequest("a", terms(PRIVACY), 1, PLAN, (0, 1), False)
CONSTANTS = ConstantsRequest("a", terms(PRIVACY), 1, *BOUNDS)
PICKS = PicksRequest("a", terms(PAPER), PLAN, (0, 1), False, 50)
SUMS = ClassSumsRequest("a", terms(PRIVACY), 1, (0, 1), ORIGIN)
CELLS = CellsRequest("a", terms(PRIVACY), 1, (0, 1), ORIGIN, ORIGIN)


def prepare_table_replies(make, privacy, request):
    """Return a function that prepares the replies of a table's party."""
    frame = encode(request)

    def prepare(rows):
        def reply():
            return serve(make("north", *rows, privacy=privacy, ledger=NoLedger()), frame)

        return reply

    return prepare


NETWORK = perceptron(N_COLUMNS, 2, hidden=(16,), seed=1)
CLASS_COUNTS = NoisedCountsRequest("a", terms(DPSGD), (0, 1), np.empty(0), np.empty(0))
STEPS = BeginRequest("a", terms(DPSGD), (0,), 1, N_ROWS, 1.0)  # one step
ROUND = encode(
    PrivateTrainRequest("a", 0, Regime(learning_rate=0.1, momentum=0.0), 40, NETWORK.initial)
)


def make_client(name, x, y, **others):
    """Return a private kNN-Per client."""
    return PrivateKNNPerParty(name, x, y, NETWORK, **others)


def prepare_round_replies(rows):
    """Return a function that replies to one round of private training."""
    party = make_client("north", *rows, privacy=DPSGD, ledger=NoLedger())
    party.answer(CLASS_COUNTS)
    party._noised_n_rows = N_ROWS  # equal noise for both tables, so that they take equal steps
    party.answer(STEPS)
    return lambda: serve(party, ROUND)


QUERY = encode_query(np.full(N_COLUMNS, 128.0))


def prepare_search_replies(rows):
    """Return a function that replies to one private search."""
    provider = Provider.of("north", rows[0], metric_of("euclidean"), decode=decode_query)
    frames = [
        encode(PaddedBoundRequest("q", QUERY, 16, 0.0)),
        encode(PaddedNearestRequest("q", QUERY, np.array([12]), 16, 0.0)),
    ]

    def reply():
        provider._open.clear()
        return [serve(provider, frame) for frame in frames]

    return reply


KINDS = {
    "FlyNN counts": (prepare_table_replies(PrivateFlyNNParty, PRIVACY, COUNTS), [*ROWS, "added"]),
    "FlyNN constants": (
        prepare_table_replies(PrivateFlyNNParty, PRIVACY, CONSTANTS),
        ["subnormal", "added"],
    ),
    "FlyNN picks": (prepare_table_replies(PrivateFlyNNParty, PAPER, PICKS), ["constant", "added"]),
    "FedPNN class sums": (
        prepare_table_replies(PrivateFedPNNParty, PRIVACY, SUMS),
        ["huge cell", "subnormal", "rare label", "added"],
    ),
    "FedPNN cells": (
        prepare_table_replies(PrivateFedPNNParty, PRIVACY, CELLS),
        ["huge cell", "added"],
    ),
    "kNN-Per counts": (
        prepare_table_replies(make_client, DPSGD, CLASS_COUNTS),
        ["rare label", "added"],
    ),
    "kNN-Per round": (
        prepare_round_replies,
        ["huge cell", "subnormal", "not finite", "rare label", "added"],
    ),
    "FedKNN search": (prepare_search_replies, ["constant", "huge cell", "added"]),
}


def measure_times(replies, n_pairs, grid_s):
    """Return the seconds of replies, an array of shape (2, n_pairs)."""
    times = np.empty((2, n_pairs))
    order = random.Random(0)
    clock = time.perf_counter if grid_s else time.thread_time
    for _ in range(20):
        for reply in replies:
            reply()
    gc.disable()
    for i in range(n_pairs):
        for side in order.sample((0, 1), 2):
            start = clock()
            with delay_to_grid(grid_s):
                replies[side]()
            times[side, i] = clock() - start
        if i % 100 == 0:
            gc.collect()
    gc.enable()
    return times


def estimate_auc(times):
    """Return the AUC of single times and its half width (DeLong)."""
    first, second = times
    n = len(first)
    ranks = rankdata(np.concatenate([first, second]))
    # fraction of the other times that each time exceeds
    above = (ranks[n:] - rankdata(second)) / n
    below = 1 - (ranks[:n] - rankdata(first)) / n
    return above.mean(), Z * math.sqrt((above.var(ddof=1) + below.var(ddof=1)) / n)


def compare_pairs(times):
    """Return the fraction of slower second replies and its half width."""
    first, second = times
    n, fraction = len(first), float(((second > first) + 0.5 * (second == first)).mean())
    width = Z * math.sqrt(fraction * (1 - fraction) / n + Z**2 / (4 * n**2)) / (1 + Z**2 / n)
    return fraction, width


def main(n_pairs=N_PAIRS, grid_ms=0.0, names=()):
    """Print one line per case."""
    print(f"{n_pairs} pairs of replies, grid {grid_ms:g} ms")
    print(f"{'reply':20s}{'row':13s}{'ms':>8s}{'ms':>8s}  {'AUC':16s}{'pairs':16s}target {TARGET}")
    for kind, (prepare, names_of_kind) in KINDS.items():
        for name in names_of_kind:
            if names and f"{kind} {name}" not in names and kind not in names:
                continue
            replies = [prepare(rows) for rows in make_neighbors(name)]
            times = measure_times(replies, n_pairs, grid_ms / 1e3)
            medians = 1e3 * np.median(times, axis=1)
            attacks = [
                (max(a, 1 - a), width) for a, width in (estimate_auc(times), compare_pairs(times))
            ]
            verdict = "met" if all(a <= TARGET for a, _ in attacks) else "MISSED"
            attack_texts = "".join(f"{a:6.3f} ± {width:.3f} " for a, width in attacks)
            print(
                f"{kind:20s}{name:13s}{medians[0]:8.3f}{medians[1]:8.3f}  {attack_texts}{verdict}"
            )
            sys.stdout.flush()


if __name__ == "__main__":
    arguments = sys.argv[1:]
    numbers = [parse(text) for parse, text in zip((int, float), arguments, strict=False)]
    main(*numbers, names=arguments[2:])
