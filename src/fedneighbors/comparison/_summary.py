"""Recommendation and run record of a comparison."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from fedneighbors.comparison._candidates import (
    DELTA,
    EPSILON,
    ComparedMethod,
    private_name,
)
from fedneighbors.comparison._schedule import MIN_REPEATS, Result
from fedneighbors.comparison._scores import (
    JOINING_CAPTION,
    PARTY_METRIC,
    difference_interval,
    judge_joining,
    mean_score,
)
from fedneighbors.comparison._table import Task
from fedneighbors.datasets._table import join_names
from fedneighbors.records import Figure, ResultTable

_SCORES = {
    "classification": (
        "accuracy",
        "balanced accuracy",
        "ROC-AUC",
        "log loss",
        "calibration error",
    ),
    "regression": ("R²", "root mean squared error", "mean absolute error"),
}

_AVERAGED = (
    "at each party, scikit-learn's {}, whose predictions are averaged with the parties' numbers of "
    "rows as weights"
)

TRAINERS: Mapping[str, str] = {
    "alone": "scikit-learn's models, which each party trains for itself",
    "averaged linear models": _AVERAGED.format("LogisticRegression or Ridge"),
    "averaged boosting": _AVERAGED.format("HistGradientBoosting"),
    "discriminant analysis": "FederatedDiscriminantClassifier of fedneighbors.baselines",
    "kNN-Per, discriminants": "KNNPerClassifier(representation='discriminants')",
    "FlyNN": "FlyNNClassifier()",
    "FedPNN": "FedPNNClassifier()",
    "kNN search": "FederatedNeighborsClassifier or -Regressor(weights='distance', "
    "standardize=True)",
    "federated boosting": "FederatedBoostingClassifier or -Regressor of fedneighbors.baselines",
    "FedAvg": "FedAvgClassifier of fedneighbors.baselines",
    "kNN-Per": "KNNPerClassifier or -Regressor(representation='network', combine='paper')",
    "Ditto": "DittoClassifier of fedneighbors.baselines",
    "kNN-Per, pool": "KNNPerClassifier(representation='network', combine='pool')",
}
"""Means by which users train each candidate that can be recommended."""

COMMANDS: Mapping[str, tuple[str, ...]] = {
    "discriminant analysis": ("discriminants",),
    "kNN-Per, discriminants": ("knnper", "--representation", "discriminants"),
    "FlyNN": ("flynn",),
    "FedPNN": ("fedpnn",),
    "kNN search": ("neighbors",),
    "federated boosting": ("boosting",),
    "kNN-Per": ("knnper", "--representation", "network", "--combine", "paper"),
    "kNN-Per, pool": ("knnper", "--representation", "network", "--combine", "pool"),
}
"""Arguments of ``fedneighbors run`` that train a candidate, if there is such a command."""


@dataclass(frozen=True)
class Summary:
    """Scores of all candidates, and the recommended one.

    Parameters
    ----------
    candidates : sequence of ComparedMethod
        The candidates.
    results : mapping of (str, int) to dict
        Result of each training, by candidate and split.
    task : {"classification", "regression"}
        Kind of the targets.
    metric : str
        Name of the score that decides.
    parties : sequence of str
        Names of the parties, by code.
    n_rows : sequence of int
        Number of rows of each party.
    """

    candidates: Sequence[ComparedMethod]
    results: Mapping[tuple[str, int], Result]
    task: Task
    metric: str
    parties: Sequence[str]
    n_rows: Sequence[int]

    def splits(self, name: str) -> list[int]:
        """Return the splits of which a candidate has the deciding score."""
        return sorted(
            repeat
            for (candidate, repeat), result in self.results.items()
            if candidate == name and result.get("scores", {}).get(self.metric) is not None
        )

    def mean(self, name: str, score: str | None = None) -> float | None:
        """Return the mean of a score over a candidate's splits."""
        values = [
            self.results[name, repeat]["scores"][score or self.metric]
            for repeat in self.splits(name)
        ]
        present = [value for value in values if value is not None]
        return float(np.mean(present)) if present else None

    def compare(self, first: str, second: str) -> tuple[float, float, float]:
        """Return the mean paired difference, and its 95 % interval."""
        common = sorted(set(self.splits(first)) & set(self.splits(second)))
        a, b = (
            [self.results[name, repeat]["scores"][self.metric] for repeat in common]
            for name in (first, second)
        )
        return float(np.mean(np.subtract(a, b))), *difference_interval(a, b)

    def _list_scored(self, n_splits: int) -> list[ComparedMethod]:
        """Return the candidates without pooling that have this many splits."""
        able = [c for c in self.candidates if c.kind in ("alone", "federated")]
        return [c for c in able if len(self.splits(c.name)) >= n_splits]

    @property
    def ranking(self) -> list[ComparedMethod]:
        """Return the candidates with the most splits, best first."""
        most = max((len(self.splits(c.name)) for c in self._list_scored(1)), default=1)
        return sorted(self._list_scored(most), key=lambda c: -(self.mean(c.name) or 0.0))

    @property
    def runner_up(self) -> ComparedMethod | None:
        """Return the scored candidate nearest to the recommended one.

        It may have been left out of later splits; the two are compared on their common ones.
        """
        best = self.recommended
        scored = self._list_scored(min(MIN_REPEATS, len(self.splits(best.name))))
        others = [c for c in scored if c is not best]
        return min(others, key=lambda c: self.compare(best.name, c.name)[0], default=None)

    @property
    def recommended(self) -> ComparedMethod:
        """Return the candidate with the best mean score."""
        return self.ranking[0]

    @property
    def sentence(self) -> str:
        """Return the recommendation and its reason."""
        ranking = self.ranking
        best = ranking[0]
        text = f"Recommended: {best.name}, {self.metric} {self._format(self.mean(best.name))}"
        n_splits = len(self.splits(best.name))
        text += f" over {n_splits} split{'s' if n_splits > 1 else ''}"
        others = {c.name: c for c in self.candidates if self.splits(c.name)}
        if best.kind == "alone":
            joined = any(candidate.kind == "federated" for candidate in ranking)
            text += "; no method that joins the parties was " + ("better" if joined else "finished")
        elif "alone" in others:
            gain, low, high = self.compare(best.name, "alone")
            text += f"; joining gains {gain:+.3f} over each party alone{_interval(low, high)}"
            text += _describe_chance(low)
        elif "alone" in (candidate.name for candidate in self.candidates):
            text += "; training alone was not finished"
        if "pooled rows" in others:
            text += f"; pooled rows would give {self._format(self.mean('pooled rows'))}"
        if (runner_up := self.runner_up) is not None:
            lead, low, high = self.compare(best.name, runner_up.name)
            text += f"; next is {runner_up.name}, {lead:.3f} below{_interval(low, high)}"
            text += _describe_chance(low)
        lacking = [
            c.name for c in self.candidates if c.kind == "federated" and not self.splits(c.name)
        ]
        late = [name for name in lacking if self._ran_out_of_time(name)]
        failed = [name for name in lacking if name not in late]
        for reason, names in (("not finished in time", late), ("without scores", failed)):
            text += f"; {reason}: {join_names(names, most=len(names))}" if names else ""
        return text + "."

    @property
    def next_step(self) -> str:
        """Return a sentence about the training of the recommended method."""
        name = self.recommended.name
        command = f", or `fedneighbors run {' '.join(COMMANDS[name])}`" if name in COMMANDS else ""
        return f"To train it: {TRAINERS[name]}{command}."

    @property
    def recommended_private(self) -> str:
        """Return the method that is best under a budget, if any."""
        names = {private_name(c.name): c.name for c in self.candidates if c.budget}
        scored = [name for name in names if self.splits(name)]
        return names[max(scored, key=lambda name: self.mean(name) or 0.0)] if scored else ""

    def _ran_out_of_time(self, name: str) -> bool:
        """Return whether the first training was stopped, or not begun."""
        result = self.results.get((name, 0), {})
        return "failure" in result and "seconds" in result  # an error is stored without

    def _format(self, score: float | None) -> str:
        return "unknown" if score is None else f"{score:.3f}"

    def tables(self) -> tuple[ResultTable, ...]:
        """Return the tables of scores, parties and disclosures."""
        tables = (self._scores(), self._by_party(), self._disclosures())
        return tables if not self._failures().rows else (*tables, self._failures())

    def _scores(self) -> ResultTable:
        best = self.recommended.name
        scored = [c for c in self.candidates if c.kind != "private" and self.splits(c.name)]
        rows = []
        for candidate in sorted(scored, key=lambda c: -(self.mean(c.name) or 0.0)):
            name = candidate.name
            difference, low, high = self.compare(name, best)
            finite = np.isfinite(low) and name != best
            first = self.results[name, 0]
            rows.append(
                (
                    name,
                    *(self.mean(name, score) for score in _SCORES[self.task]),
                    self._worst_decile(name),
                    difference if name != best else None,
                    (high - low) / 2 if finite else None,
                    len(self.splits(name)),
                    first["exchanges"],
                    first["bytes"],
                    first["seconds"],
                )
            )
        return ResultTable(
            name="scores",
            title=f"Scores on held-out rows; {self.metric} decides",
            columns=(
                "method",
                *_SCORES[self.task],
                f"{PARTY_METRIC[self.task]}, worst decile of parties",
                f"{self.metric} minus recommended",
                "half-width of its 95 % interval",
                "splits",
                "exchanges",
                "bytes",
                "seconds",
            ),
            rows=tuple(rows),
            caption="Means over splits. A method with fewer splits is compared with the "
            "recommended one on their common splits. Exchanges and bytes of one training are empty "
            "if they were not counted.",
        )

    def _worst_decile(self, name: str) -> float:
        """Return the mean score that nine tenths of the parties reach."""
        level = 0.1 if self.task == "classification" else 0.9
        values = [
            np.quantile(list(self.results[name, repeat]["parties"].values()), level)
            for repeat in self.splits(name)
        ]
        return float(np.mean(values))

    def _by_party(self) -> ResultTable:
        joined = [c.name for c in self.ranking if c.kind == "federated"][:1]
        alone = self.results.get(("alone", 0), {}).get("baselines", {})
        losses = {name: self.results[name, 0]["losses"] for name in joined}
        rows = []
        for party, title in enumerate(self.parties):
            own = {
                name: np.array(by_party.get(str(party), []))
                for name, by_party in (*alone.items(), *losses.items())
            }
            scores = (mean_score(values, self.task) for values in own.values())
            baselines = [own[name] for name in alone]
            verdict = (
                judge_joining(own[joined[0]], baselines, self.task) if joined and alone else None
            )
            rows.append((title, verdict, int(self.n_rows[party]), *scores))
        return ResultTable(
            name="parties",
            title=f"{PARTY_METRIC[self.task].capitalize()} of each party alone and joined",
            columns=(
                "party",
                "joining pays?",
                "rows",
                *(f"{name}, own" for name in (*alone, *joined)),
            ),
            rows=tuple(rows),
            caption="Own: on the party's held-out rows of the first split. Boosting and kNN are "
            "trained on the party's own rows. " + JOINING_CAPTION[self.task],
        )

    def _disclosures(self) -> ResultTable:
        rows = [
            (c.name, c.leaves, c.budget or "nothing", self._private_score(c))
            if c.kind == "federated"
            else (c.name, c.leaves, "-", "-")
            for c in self.candidates
            if c.kind != "private"
        ]
        return ResultTable(
            name="disclosures",
            title="Data that leave a party, and the cost of a privacy budget",
            columns=(
                "method",
                "data",
                "a privacy budget covers",
                f"{self.metric} at epsilon {EPSILON}",
            ),
            rows=tuple(rows),
            caption=f"Scores at epsilon {EPSILON} are means over splits of trainings under this "
            "budget, with the ranges of columns treated as declared, and for kNN-Per with a delta "
            f"of {DELTA:g}; all other scores are without a budget. The comparison itself is not "
            "private: it reads all rows, and its scores are exact.",
        )

    def _private_score(self, candidate: ComparedMethod) -> str:
        """Return a method's score under a privacy budget, and its cost."""
        if not candidate.budget:
            return "none possible"
        if candidate.keeps_answers and self.splits(candidate.name):
            return f"{self._format(self.mean(candidate.name))} (the noise changes no answer)"
        name = private_name(candidate.name)
        if not self.splits(name):
            if self._ran_out_of_time(name):
                return "not finished in time"
            failed = "failure" in self.results.get((name, 0), {})
            return "failed, see the reason" if failed else "not measured"
        text = self._format(self.mean(name))
        if self.splits(candidate.name):
            text += f" ({self.compare(name, candidate.name)[0]:+.3f})"
        return text

    def _failures(self) -> ResultTable:
        failed = [
            (name, result["failure"])
            for (name, repeat), result in self.results.items()
            if repeat == 0 and "failure" in result
        ]
        return ResultTable(
            "failures", "Methods without scores", ("method", "reason"), tuple(failed)
        )

    def figures(self) -> tuple[Figure, ...]:
        """Return the figures of scores."""
        return (
            Figure(
                name="scores",
                kind="bar",
                title=f"{self.metric} on held-out rows",
                table="scores",
                x="method",
                y=self.metric,
                caption="Mean over splits.",
            ),
        )


def _describe_chance(low: float) -> str:
    """Return a clause about a difference whose interval begins at ``low``."""
    if not np.isfinite(low):
        return ", perhaps by chance, which one split does not show"
    return ", a difference within chance" if low <= 0 else ""


def _interval(low: float, high: float) -> str:
    return f" (95 % interval {low:+.3f} to {high:+.3f})" if np.isfinite(low) else ""
