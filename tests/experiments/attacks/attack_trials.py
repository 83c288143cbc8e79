"""The attacker's side of the attacks on FlyNN: knowledge, trials, success.

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


def plan_for(x, *, expansion="mirror", n_units=N_UNITS, n_inputs=8, n_active=N_ACTIVE):
    mean, scale = standardizer(column_moments(x))
    features = FeatureMap(x.shape[1], expansion, mean, scale)
    return HashPlan(features, n_units, min(n_inputs, features.n_outputs), n_active, seed=0)


def indicators(active, n_units):
    """Return counts of classes of one row each, shape (n_rows, n_units)."""
    counts = np.zeros((len(active), n_units), np.int64)
    np.put_along_axis(counts, active.astype(np.int64), 1, axis=1)
    return counts


def candidates(x, plan):
    rows = np.random.default_rng(1).choice(len(x), N_CANDIDATES, replace=False)
    return x[rows], hash_with_plan(x[rows], plan)


@dataclass(frozen=True)
class Protection:
    """Noise on counts of which a row raises 32, for privacy of epsilon = 1, delta = 1e-6.

    ``local``: Laplace noise on each party's counts. ``central`` and ``central pure``: Gaussian and
    Laplace noise on the sum; the attacker knows all but the shares of three parties.
    """

    mechanism: str
    neighbors: str = "add_remove"
    noise_share: Fraction = Fraction(1)
    """Less than 1 keeps the promise badly: so much of the standard deviation is left."""

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
            kept = mechanism(allowed, sensitivity)
        else:
            kept = shares(allowed, sensitivity, n_shares=N_HONEST, n_cells=N_UNITS)
        if self.mechanism == "central":
            return replace(kept, variance=kept.variance * self.noise_share**2)
        return replace(kept, scale=kept.scale * self.noise_share)

    def evidence(self, excess):
        return evidence_under(self.noise, excess)

    @property
    def attainable_auc(self):
        """Return the success of the best test for a counted row against this noise."""
        if self.mechanism == "central":
            return gaussian_auc((N_ACTIVE / float(self.noise.variance)) ** 0.5)
        return laplace_auc(float(self.noise.scale), N_ACTIVE)


def evidence_under(noise, excess, step=1):
    if hasattr(noise, "variance"):
        return gaussian_evidence(excess, float(noise.variance), step)
    return laplace_evidence(excess, float(noise.scale), step)


def released(noise, counts, bits):
    """Return the final counts without the coordinator's and the other parties' own parts."""
    if isinstance(noise, DiscreteLaplace):
        return counts + noise.noise(counts.size, bits=bits).reshape(counts.shape)
    parts = [noise.share(counts.size, bits=bits) for _ in range(N_HONEST)]
    return counts + sum(parts).reshape(counts.shape)


def name_the_record(protection, x, *, n_trials=N_TRIALS):
    """Release secret records, one a trial; return how often each attack names the right one.

    The strongest attacker knows all other rows of the class, so that what is left of the counts
    is the secret record's hash and the noise.
    """
    plan, rng = plan_for(x), np.random.default_rng(2)
    rows, active = candidates(x, plan)
    secret = rng.integers(0, N_CANDIDATES, n_trials)

    excess = released(protection.noise, indicators(active, plan.n_units)[secret], rng.bytes)

    linked = record_evidence(protection.evidence(excess), active).argmax(axis=1)
    reconstructed = correlate_rows(reconstruct(excess, plan), rows, plan).argmax(axis=1)
    return int((linked == secret).sum()), int((reconstructed == secret).sum())


def tell_members(protection, *, n_trials=20_000):
    """Return the evidence for a row that was counted in half of the releases.

    Only the cells that the row raises are drawn; the attacker knows all other rows, and the other
    cells have the same law with the row as without it.
    """
    bits = np.random.default_rng(3).bytes
    with_row = released(protection.noise, np.ones((n_trials, N_ACTIVE), np.int64), bits)
    without = released(protection.noise, np.zeros((n_trials, N_ACTIVE), np.int64), bits)
    return protection.evidence(with_row).sum(axis=1), protection.evidence(without).sum(axis=1)


def ask_for_counts(protection, *, n_trials):
    """Run :func:`tell_members` with charged replies that the parties send.

    The attacker is the coordinator together with two of five parties; one of the other three holds
    the row in half of the trials. What remains of those three is the least that masked sums allow.
    """
    x, y = load_digits(return_X_y=True)
    x, y = x[:12], y[:12] % 2
    plan = plan_for(x, n_units=300)
    active = hash_with_plan(x, plan)
    others = slice(1, 4) if protection.mechanism == "local" else slice(1, 12)
    known = count_activations(active[others], y[others], n_units=plan.n_units, n_classes=2)
    scores = []
    for first in (0, 1):  # with the row and without it
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
                    bits=np.random.default_rng([7, first, rows.start]).bytes,
                )
                for rows in (slice(first, 4), slice(4, 8), slice(8, 12))
            ]
            excess = np.stack(
                [
                    _answers(protection, parties, plan, f"{first} {trial}") - known
                    for trial in range(n_trials)
                ]
            )
        scores.append(protection.evidence(excess[:, active[0], y[0]]).sum(axis=1))
    return tuple(scores)


def _answers(protection, parties, plan, run):
    """Return counts of one party as sent, or the sum of all that a masked round reveals."""
    agreed = terms(protection.privacy)
    if protection.mechanism == "local":
        request = NoisyCountRequest(run, agreed, 1, plan, (0, 1), constants_paid=False)
        return parties[0].answer(request).counts
    request = MaskedNoisyCountRequest(run, agreed, N_HONEST, plan, (0, 1), constants_paid=False)
    return sum(
        party.contribute(request, MaskedRound(f"{run} {party.name}", 5, 5, 4)).counts.astype(
            np.int64
        )
        for party in parties
    )


def released_models(protection, *, n_trials):
    """Run :func:`tell_members` on models that three parties train, masks included."""
    x, y = load_digits(return_X_y=True)
    x, y = x[:12], y[:12] % 2
    owners = np.repeat(["north", "east", "south"], 4)
    scores = []
    for first in (0, 1):  # with the row and without it
        models = [
            FlyNNClassifier(
                n_units=300,
                n_inputs=8,
                n_active=N_ACTIVE,
                standardize=False,
                privacy=protection.privacy,
            )
            .fit(x[first:], y[first:], parties=owners[first:])
            .model_
            for _ in range(n_trials)
        ]
        active = hash_with_plan(x, models[0].plan)
        known = count_activations(active[1:], y[1:], n_units=300, n_classes=2)
        excess = np.stack([model.counts - known for model in models])[:, active[0], y[0]]
        scores.append(gaussian_evidence(excess, models[0].noise_variance).sum(axis=1))
    return tuple(scores)


@dataclass(frozen=True)
class Split:
    """Rows of the attacker's own, rows that were counted, and rows that were not."""

    own: np.ndarray
    members: np.ndarray
    outsiders: np.ndarray

    @classmethod
    def of(cls, y):
        order = np.random.default_rng(4).permutation(len(y))
        return cls(*np.array_split(order, [len(y) // 4, 3 * len(y) // 4]))


def membership_from_a_sum(x, y, plan, split, evidence):
    """Return the AUC of an attacker who knows only mean activation frequencies."""
    active = hash_with_plan(x, plan)
    own = count_activations(
        active[split.own], y[split.own], n_units=plan.n_units, n_classes=y.max() + 1
    )
    frequencies = (own + 0.5) / (np.bincount(y[split.own]) + 1)
    sizes = np.bincount(y[split.members])
    per_unit = evidence(sizes, frequencies)
    scores = [
        np.concatenate(
            [record_evidence(per_unit[:, c], active[rows[y[rows] == c]]) for c in np.unique(y)]
        )
        for rows in (split.members, split.outsiders)
    ]
    return auc(*scores)


def exact_sum(x, y, split):
    """Return the AUC of the same attacker against eight parties' model without privacy."""
    parties = np.arange(len(split.members)) % 8
    model = FlyNNClassifier().fit(x[split.members], y[split.members], parties=parties).model_
    return membership_from_a_sum(
        x,
        y,
        model.plan,
        split,
        lambda sizes, frequencies: sum_evidence(model.counts, sizes, frequencies),
    )


def best_match_is_true(x, *, n_rows=400):
    """Return the similarity of records to raw counts, and their rank among all rows."""
    units, inputs, n_active = default_sizes(len(x), 2 * x.shape[1])
    plan = plan_for(x, n_units=units, n_inputs=inputs, n_active=n_active)
    active = hash_with_plan(x[:n_rows], plan)
    likeness = np.concatenate(
        [
            correlate_rows(reconstruct(indicators(active[k : k + 100], units), plan), x, plan)
            for k in range(0, n_rows, 100)
        ]
    )
    hits = likeness.argmax(axis=1) == np.arange(n_rows)
    return likeness[np.arange(n_rows), np.arange(n_rows)].mean(), hits.mean()


def main(n_trials=10_000):
    for name, load in LOADERS.items():
        x, y = load(return_X_y=True)
        alike, matched = best_match_is_true(x)
        print(f"{name}: raw counts of one record: correlation {alike:.2f}, ", end="")
        print(f"best match among {len(x)} rows is the true one in {matched:.1%}")
        print(
            f"{name}: exact sum over 8 parties: membership AUC {exact_sum(x, y, Split.of(y)):.3f}"
        )
        for kind in MECHANISMS:
            for neighbors in ("add_remove", "replace_one"):
                linked, reconstructed = name_the_record(
                    Protection(kind, neighbors), x, n_trials=n_trials
                )
                limit = hit_rate_limit(linked, n_trials)
                print(
                    f"{name}: {kind}, {neighbors}: record named in {linked / n_trials:.2%} ", end=""
                )
                print(f"(below {limit:.2%}), rebuilt and matched in {reconstructed / n_trials:.2%}")
    for kind in MECHANISMS:
        for share in ("1", "1/2", "1/6"):
            found = auc(*tell_members(Protection(kind, noise_share=Fraction(share))))
            print(f"{kind}, {share} of the noise: membership AUC {found:.3f}", end="")
            print(f", best possible with all of it {Protection(kind).attainable_auc:.3f}")
    print(f"epsilon = 1, delta = 1e-6 allows {largest_auc(ApproxDP(1, DELTA)):.3f}")


if __name__ == "__main__":
    main()
