"""Membership guesses from the replies of whole nodes, for two files that differ by one row.

A guess is made for each run by a likelihood ratio of all numbers that leave. Under (epsilon,
delta), the advantage of any guess, its rate of true positives minus that of false ones, is at most
(e^epsilon - 1 + 2 delta) / (e^epsilon + 1) (Kairouz, Oh and Viswanath, ICML 2015).
"""

import math
import os
from contextlib import nullcontext
from fractions import Fraction

import numpy as np
import pytest
from scipy.stats import beta

from fedneighbors.methods.flynn.private import protocol as flynn
from tests.privacy.test_file_audit import (
    NODES,
    ROWS,
    UNBOUNDED,
    Node,
    fixed_training_noise,
    numbers_of,
)

FEW = [("FlyNN", "laplace"), ("FlyNN", "paper"), ("FedPNN", "gaussian")]
ERROR = 1e-3 / (2 * len(NODES))  # one bound on a rate fails so often; all hold at 99.9 % confidence
ROW = b"110,f,1,no"  # at the bounds; no other row is


class AttackedNode(Node):
    """Node with new noise in each run; a masked sum is that of all three parties."""

    bits = staticmethod(lambda: os.urandom)
    training_noise = staticmethod(nullcontext)

    def numbers(self, rows):
        """Return the numbers in the replies to charged requests."""
        replies = [self.replies(rows)[0]]
        if any(masked for _, masked in self.requests):
            replies += [self.replies(list(ROWS))[0] for _ in ("south", "west")]
        return np.concatenate(
            [
                sum(dense(request, reply[n]) for reply in replies)
                for n, (request, _) in enumerate(self.requests)
                if self.sensitivity(request) is not None
            ]
        )


def dense(request, reply):
    """Return the numbers of a reply; cells that are not picked are 0."""
    if not isinstance(request, flynn.PicksRequest):
        return numbers_of(reply).astype(float)
    values = np.zeros(request.plan.n_units * len(request.classes))
    values[reply.cells] = reply.counts
    return values


class Quiet:
    """Context without noise, or with known noise for selected cells and training."""

    def __enter__(self):
        self.patch = pytest.MonkeyPatch()
        self.patch.setattr(AttackedNode, "bits", staticmethod(lambda: bytes))
        self.patch.setattr(AttackedNode, "training_noise", staticmethod(fixed_training_noise))

    def __exit__(self, *_):
        self.patch.undo()


class Attack:
    """Guesses of the file from runs of a node on both."""

    def __init__(self, folder, method, terms, *, epsilon):
        self.node = AttackedNode(folder, method, terms, epsilon=epsilon)
        self.files = (list(ROWS), [*ROWS[:-1], ROW] if terms == "replace" else [*ROWS, ROW])
        delta, grown = float(Fraction(self.node.privacy.delta)), math.exp(Fraction(epsilon))
        self.bound = (grown - 1 + 2 * delta) / (grown + 1)
        kinds = [self.node.sensitivity(request) for request, _ in self.node.requests]
        self.exact = None
        if UNBOUNDED not in kinds:  # otherwise noise is not merely added
            with Quiet():
                self.exact = [self.node.numbers(rows) for rows in self.files]
        self.power = 1 if delta == 0 and self.exact is not None else 2  # noise of Laplace or Gauss

    def counts_of_guesses(self, n_runs):
        """Return the numbers of guesses of the second file, from ``n_runs`` on each file."""
        shown, tried = self._run(n_runs if self.exact is None else 10), self._run(n_runs)
        typical = [np.mean(side, axis=0) for side in shown] if self.exact is None else self.exact
        spread = sum(
            np.mean(abs(np.array(side) - center) ** self.power, axis=0)
            for side, center in zip(shown, typical, strict=True)
        )
        return [sum(self._ratio(run, typical, spread) > 0 for run in side) for side in tried]

    def _run(self, n_runs):
        pairs = [[self.node.numbers(rows) for rows in self.files] for _ in range(n_runs)]
        return list(zip(*pairs, strict=True))

    def _ratio(self, run, typical, spread):
        """Return the log-likelihood ratio of a run, up to a factor."""
        far, near = (abs(run - center) ** self.power for center in typical)
        return ((far - near) / np.maximum(spread, 1e-9)).sum()


def advantage(counts, n_runs):
    """Return the advantage of guesses and its lower bound (Clopper-Pearson)."""
    false, true = (int(count) for count in counts)
    least_true = beta.ppf(ERROR, true, n_runs - true + 1) if true else 0.0
    most_false = beta.isf(ERROR, false + 1, n_runs - false) if false < n_runs else 1.0
    return (true - false) / n_runs, least_true - most_false


@pytest.mark.parametrize(("method", "terms"), FEW)
def test_few_guesses_find_a_row_only_without_noise(tmp_path, method, terms):
    attack = Attack(tmp_path, method, terms, epsilon="1/4")

    _, lower = advantage(attack.counts_of_guesses(20), 20)
    with Quiet():
        without_noise, lower_without_noise = advantage(attack.counts_of_guesses(20), 20)

    assert lower <= attack.bound
    assert without_noise == 1
    assert lower_without_noise > attack.bound  # the same number of runs suffices to find a leak


N_RUNS = 500
LARGE = {"paper": "256"}  # divided among the picked cells


@pytest.mark.slow
@pytest.mark.parametrize(("method", "terms"), NODES)
def test_guesses_of_a_row_stay_within_epsilon(tmp_path, method, terms):
    attack = Attack(tmp_path, method, terms, epsilon="1")

    found, lower = advantage(attack.counts_of_guesses(N_RUNS), N_RUNS)

    print(
        f"{method} {terms}: advantage {found:.3f}, at least {lower:.3f}, bound {attack.bound:.3f}"
    )
    assert lower <= attack.bound


@pytest.mark.slow
@pytest.mark.parametrize(("method", "terms"), NODES)
def test_guesses_of_a_row_succeed_at_a_large_epsilon(tmp_path, method, terms):
    attack = Attack(tmp_path, method, terms, epsilon=LARGE.get(terms, "64"))

    found, lower = advantage(attack.counts_of_guesses(100), 100)

    print(
        f"{method} {terms}: advantage {found:.3f}, at least {lower:.3f}, bound {attack.bound:.3f}"
    )
    assert lower <= attack.bound
    assert found > attack.bound / 2
