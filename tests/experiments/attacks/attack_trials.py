"""Trials of the attacks on FlyNN: knowledge and success of the attacker.

``python -m tests.experiments.attacks.attack_trials`` prints the numbers of the documentation.
"""

from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property

import numpy as np
from sklearn.datasets import load_breast_cancer, load_digits

from experiments.attacks.counts import correlate_rows, reconstruct, record_evidence, sum_evidence
from experiments.attacks.evidence import gaussian_evidence, laplace_evidence
from experiments.attacks.limits import gaussian_auc, laplace_auc, largest_auc
from experiments.attacks.scores import auc, hit_rate_limit
from fedneighbors import FlyNNClassifier
from fedneighbors.federation._roles import MaskedRound
from fedneighbors.methods.flynn._features import FeatureMap, standardizer
from fedneighbors.methods.flynn.algorithm import (
    HashPlan,
    count_activations,
    default_sizes,
    hash_with_plan,
)
from fedneighbors.methods.flynn.private._party import PrivateFlyNNParty
from fedneighbors.methods.flynn.private._release import count_sensitivity, release_budget
from fedneighbors.methods.flynn.private.protocol import MaskedNoisyCountRequest, NoisyCountRequest
from fedneighbors.privacy._guarantees import ZCDP, ApproxDP, PureDP
from fedneighbors.privacy._policy import Privacy, terms
from fedneighbors.privacy.ledger._ledger import Ledger
from fedneighbors.privacy.noise._calibration import mechanism, shares
from fedneighbors.privacy.noise._mechanisms import DiscreteLaplace
from fedneighbors.tabular._schema import column_moments

N_UNITS = 1_000
N_ACTIVE = 32
N_HONEST = 3
DELTA = "1e-6"
MECHANISMS = ("local", "central", "central pure")
N_CANDIDATES = 100
N_TRIALS = 5_000
LOADERS = {"digits": load_digits, "breast cancer": load_breast_cancer}


def make_plan(x, *, expansion="mirror", n_units=N_UNITS, n_inputs=8, n_active=N_ACTIVE):
    mean, scale = standardizer(column_moments(x))
    features = FeatureMap(x.shape[1], expansion, mean, scale)
    return HashPlan(features, n_units, min(n_inputs, features.n_outputs), n_active, seed=0)


def one_row_counts(active, n_units):
    """Return the counts of classes with one row each, of shape (n_rows, n_units)."""
    counts = np.zeros((len(active), n_units), np.int64)
    np.put_along_axis(counts, active.astype(np.int64), 1, axis=1)
    return counts


def draw_candidates(x, plan):
    rows = np.random.default_rng(1).choice(len(x), N_CANDIDATES, replace=False)
    return x[rows], hash_with_plan(x[rows], plan)


@dataclass(frozen=True)
class Protection:
    """Noise on counts for epsilon = 1, delta = 1e-6, if a row raises 32 counts.

    ``local``: Laplace noise on each party's counts. ``central`` and ``central pure``: Gaussian and
    Laplace noise on the sum; the attacker knows all but the shares of three parties.
    """

    mechanism: str
    neighbors: str = "add_remove"
    noise_fraction: Fraction = Fraction(1)
    """Fraction of the required standard deviation; the guarantee holds for 1 only."""

    @property
    def privacy(self):
        if self.mechanism == "local":
            return Privacy(1, mechanism="local", neighbors=self.neighbors, classes=(0, 1))
        delta = DELTA if self.mechanism == "central" else 0
        return Privacy(1, delta, mechanism="central", neighbors=self.neighbors, classes=(0, 1))

    @property
    def sensitivity(self):
        return count_sensitivity(N_ACTIVE, self.neighbors)

    @cached_property
    def noise(self):
        return self.noise_on(self.sensitivity, of="counts", constants_paid=False)

    def noise_on(self, sensitivity, *, of, constants_paid):
        allowed = release_budget(self.privacy, of=of, constants_paid=constants_paid)
        if self.mechanism == "local":
            noise = mechanism(allowed, sensitivity)
        else:
            noise = shares(allowed, sensitivity, n_shares=N_HONEST, n_cells=N_UNITS)
        if self.mechanism == "central":
            return replace(noise, variance=noise.variance * self.noise_fraction**2)
        return replace(noise, scale=noise.scale * self.noise_fraction)

    def evidence(self, excess):
        return compute_evidence(self.noise, excess)

    @property
    def attainable_auc(self):
        """Return the AUC of the best test for membership against this noise."""
        if self.mechanism == "central":
            return gaussian_auc((N_ACTIVE / float(self.noise.variance)) ** 0.5)
        return laplace_auc(float(self.noise.scale), N_ACTIVE)


def compute_evidence(noise, excess, step=1):
    if hasattr(noise, "variance"):
        return gaussian_evidence(excess, float(noise.variance), step)
    return laplace_evidence(excess, float(noise.scale), step)


def add_noise(noise, counts, bits):
    """Add the noise that the attacker does not know to counts."""
    if isinstance(noise, DiscreteLaplace):
        return counts + noise.noise(counts.size, bits=bits).reshape(counts.shape)
    parts = [noise.share(counts.size, bits=bits) for _ in range(N_HONEST)]
    return counts + sum(parts).reshape(counts.shape)


def identify_records(protection, x, *, n_trials=N_TRIALS):
    """Release one secret record per trial; return the number of hits of each attack.

    The strongest attacker knows all other rows of the class and subtracts them, so that the counts
    are those of the secret record plus noise.
    """
    plan, rng = make_plan(x), np.random.default_rng(2)
    rows, active = draw_candidates(x, plan)
    secret = rng.integers(0, N_CANDIDATES, n_trials)

    excess = add_noise(protection.noise, one_row_counts(active, plan.n_units)[secret], rng.bytes)

    linked = record_evidence(protection.evidence(excess), active).argmax(axis=1)
    reconstructed = correlate_rows(reconstruct(excess, plan), rows, plan).argmax(axis=1)
    return int((linked == secret).sum()), int((reconstructed == secret).sum())


def infer_membership(protection, *, n_trials=20_000):
    """Return the evidence for a row in releases with it and without it.

    Only the cells that the row raises are drawn; the attacker knows all other rows, and the other
    cells have the same distribution with the row as without it.
    """
    bits = np.random.default_rng(3).bytes
    with_row = add_noise(protection.noise, np.ones((n_trials, N_ACTIVE), np.int64), bits)
    without = add_noise(protection.noise, np.zeros((n_trials, N_ACTIVE), np.int64), bits)
    return protection.evidence(with_row).sum(axis=1), protection.evidence(without).sum(axis=1)


def attack_replies(protection, *, n_trials):
    """Infer membership from the charged replies of parties.

    The attacker is the coordinator together with two of five parties; one of the other three holds
    the row in half of the trials. The sum of these three has the fewest parties that masked sums
    allow.
    """
    x, y = load_digits(return_X_y=True)
    x, y = x[:12], y[:12] % 2
    plan = make_plan(x, n_units=300)
    active = hash_with_plan(x, plan)
    others = slice(1, 4) if protection.mechanism == "local" else slice(1, 12)
    other_counts = count_activations(active[others], y[others], n_units=plan.n_units, n_classes=2)
    scores = []
    for start in (0, 1):  # with the row and without it
        with Ledger(":memory:", party="honest") as ledger:
            budget = ZCDP(10**6) if protection.mechanism == "central" else PureDP(10**6)
            ledger.set_budget("table", budget)
            parties = [
                PrivateFlyNNParty(
                    str(rows.start),
                    x[rows],
                    y[rows],
                    privacy=protection.privacy,
                    ledger=ledger,
                    bits=np.random.default_rng([7, start, rows.start]).bytes,
                )
                for rows in (slice(start, 4), slice(4, 8), slice(8, 12))
            ]
            excess = np.stack(
                [
                    _request_counts(protection, parties, plan, f"{start} {trial}") - other_counts
                    for trial in range(n_trials)
                ]
            )
        scores.append(protection.evidence(excess[:, active[0], y[0]]).sum(axis=1))
    return tuple(scores)


def _request_counts(protection, parties, plan, run):
    """Return the counts of one party as sent, or the sum that a masked round reveals."""
    accepted = terms(protection.privacy)
    if protection.mechanism == "local":
        request = NoisyCountRequest(run, accepted, 1, plan, (0, 1), constants_paid=False)
        return parties[0].answer(request).counts
    request = MaskedNoisyCountRequest(run, accepted, N_HONEST, plan, (0, 1), constants_paid=False)
    return sum(
        party.contribute(request, MaskedRound(f"{run} {party.name}", 5, 5, 4)).counts.astype(
            np.int64
        )
        for party in parties
    )


def attack_models(protection, *, n_trials):
    """Infer membership from models that three parties train, with masked sums."""
    x, y = load_digits(return_X_y=True)
    x, y = x[:12], y[:12] % 2
    owners = np.repeat(["north", "east", "south"], 4)
    scores = []
    for start in (0, 1):  # with the row and without it
        models = [
            FlyNNClassifier(
                n_units=300,
                n_inputs=8,
                n_active=N_ACTIVE,
                standardize=False,
                privacy=protection.privacy,
            )
            .fit(x[start:], y[start:], parties=owners[start:])
            .model_
            for _ in range(n_trials)
        ]
        active = hash_with_plan(x, models[0].plan)
        other_counts = count_activations(active[1:], y[1:], n_units=300, n_classes=2)
        excess = np.stack([model.counts - other_counts for model in models])[:, active[0], y[0]]
        scores.append(gaussian_evidence(excess, models[0].noise_variance).sum(axis=1))
    return tuple(scores)


@dataclass(frozen=True)
class Split:
    """Rows of the attacker, rows that were counted, and rows that were not."""

    attacker: np.ndarray
    members: np.ndarray
    outsiders: np.ndarray

    @classmethod
    def of(cls, y):
        order = np.random.default_rng(4).permutation(len(y))
        return cls(*np.array_split(order, [len(y) // 4, 3 * len(y) // 4]))


def attack_sum(x, y, plan, split, evidence):
    """Return the AUC of an attacker who knows only mean activation frequencies."""
    active = hash_with_plan(x, plan)
    attacker_counts = count_activations(
        active[split.attacker], y[split.attacker], n_units=plan.n_units, n_classes=y.max() + 1
    )
    frequencies = (attacker_counts + 0.5) / (np.bincount(y[split.attacker]) + 1)
    sizes = np.bincount(y[split.members])
    per_unit = evidence(sizes, frequencies)
    scores = [
        np.concatenate(
            [record_evidence(per_unit[:, c], active[rows[y[rows] == c]]) for c in np.unique(y)]
        )
        for rows in (split.members, split.outsiders)
    ]
    return auc(*scores)


def attack_exact_sum(x, y, split):
    """Return the AUC of this attacker against a model of eight parties without privacy."""
    parties = np.arange(len(split.members)) % 8
    model = FlyNNClassifier().fit(x[split.members], y[split.members], parties=parties).model_
    return attack_sum(
        x,
        y,
        model.plan,
        split,
        lambda sizes, frequencies: sum_evidence(model.counts, sizes, frequencies),
    )


def match_raw_counts(x, *, n_rows=400):
    """Return the mean correlation with the true record, and the rate of correct matches."""
    units, inputs, n_active = default_sizes(len(x), 2 * x.shape[1])
    plan = make_plan(x, n_units=units, n_inputs=inputs, n_active=n_active)
    active = hash_with_plan(x[:n_rows], plan)
    similarities = np.concatenate(
        [
            correlate_rows(reconstruct(one_row_counts(active[k : k + 100], units), plan), x, plan)
            for k in range(0, n_rows, 100)
        ]
    )
    hits = similarities.argmax(axis=1) == np.arange(n_rows)
    return similarities[np.arange(n_rows), np.arange(n_rows)].mean(), hits.mean()


def main(n_trials=10_000):
    for name, load in LOADERS.items():
        x, y = load(return_X_y=True)
        similarity, match_rate = match_raw_counts(x)
        print(f"{name}: raw counts of one record: correlation {similarity:.2f}, ", end="")
        print(f"best match among {len(x)} rows is the true one in {match_rate:.1%}")
        measured = attack_exact_sum(x, y, Split.of(y))
        print(f"{name}: exact sum over 8 parties: membership AUC {measured:.3f}")
        for kind in MECHANISMS:
            for neighbors in ("add_remove", "replace_one"):
                n_linked, n_reconstructed = identify_records(
                    Protection(kind, neighbors), x, n_trials=n_trials
                )
                limit = hit_rate_limit(n_linked, n_trials)
                print(
                    f"{name}: {kind}, {neighbors}: record identified in {n_linked / n_trials:.2%} ",
                    end="",
                )
                match_rate = n_reconstructed / n_trials
                print(f"(below {limit:.2%}), reconstructed and matched in {match_rate:.2%}")
    for kind in MECHANISMS:
        for share in ("1", "1/2", "1/6"):
            measured = auc(*infer_membership(Protection(kind, noise_fraction=Fraction(share))))
            print(f"{kind}, {share} of the noise: membership AUC {measured:.3f}", end="")
            print(f", best possible with all of it {Protection(kind).attainable_auc:.3f}")
    print(f"epsilon = 1, delta = 1e-6 allows {largest_auc(ApproxDP(1, DELTA)):.3f}")


if __name__ == "__main__":
    main()
