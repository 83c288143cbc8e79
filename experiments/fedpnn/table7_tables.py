"""Tables and figures of ``fedpnn.table7``, with the paper's numbers."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from experiments.fedpnn.nodes import LOCAL, MERGED, REAL, SERVER, NodeScore
from experiments.fedpnn.printed import PRINTED
from fedneighbors.methods.fedpnn.synthesis._quality import Score, Utility
from fedneighbors.records import Figure, ResultTable, Scalar

Rows = tuple[tuple[Scalar, ...], ...]


@dataclass(frozen=True)
class Trial:
    """Result of one generator on one draw of a set.

    Parameters
    ----------
    name, generator : str
        Names in :data:`~.printed.PRINTED` and :data:`~.generated.GENERATORS`.
    title : str
        Name of the rows.
    n_real, n_features, n_made : int
        Numbers of real rows, of selected features and of synthetic rows.
    positive_share : float
        Share of class 1 in the synthetic rows.
    similarity : tuple of tuple of float
        Mean KSComplement and mean correlation similarity, each for the negative and positive class.
    nodes : tuple of NodeScore
        Scores of FedPNN trained on synthetic rows.
    trained_on_real : NodeScore
        Score of FedPNN trained and tested on real rows.
    boosting : Utility
        Scores of gradient boosting instead of FedPNN.
    """

    name: str
    generator: str
    title: str
    n_real: int
    n_features: int
    n_made: int
    positive_share: float
    similarity: tuple[tuple[float, float], tuple[float, float]]
    nodes: tuple[NodeScore, ...]
    trained_on_real: NodeScore
    boosting: Utility

    @classmethod
    def from_dict(cls, raw: Mapping[str, Any]) -> Self:
        """Return the trial from the result of ``dataclasses.asdict``."""
        shapes, pairs = raw["similarity"]
        parts = {
            "similarity": (tuple(shapes), tuple(pairs)),
            "nodes": tuple(NodeScore.from_dict(node) for node in raw["nodes"]),
            "trained_on_real": NodeScore.from_dict(raw["trained_on_real"]),
            "boosting": Utility(**{key: Score(**own) for key, own in raw["boosting"].items()}),
        }
        return cls(**(dict(raw) | parts))


Groups = Mapping[tuple[str, str], Sequence[Trial]]


def tables(trials: Sequence[Trial]) -> tuple[ResultTable, ...]:
    """Return all tables, with means over the draws."""
    groups: dict[tuple[str, str], list[Trial]] = {}
    for trial in trials:
        groups.setdefault((trial.name, trial.generator), []).append(trial)
    utility_rows = tuple(_utility_rows(groups))
    names = {trial.title: trial.name for trial in trials}
    return (
        ResultTable(
            name="sets",
            title="Data sets and numbers of synthetic rows",
            columns=(
                "set", "rows", "features", "synthetic rows", "positive share",
                "rows (paper)", "features (paper)", "synthetic rows (paper)",
            ),
            rows=tuple(_set_rows(trials)),
            caption="Tables 2 and 3 of the paper. Generators are trained on seven tenths of the "
            "rows. omentum_surrogate is generated and has only the shape of OVA Omentum; 500 of "
            "its 10,936 columns are kept. The credit card rows are a subset, the Polish ones of "
            "another year than the paper's.",
        ),
        ResultTable(
            name="similarity",
            title="Similarity of synthetic and real rows",
            columns=("set", "generator", "measure", "class", "ours", "paper"),
            rows=tuple(_similarity_rows(groups)),
            caption="Tables 5 and 6 of the paper: means over columns and over pairs of columns, "
            "compared with the generators' training rows.",
        ),
        ResultTable(
            name="clients",
            title="FedPNN at its clients, at the server, and on real rows",
            columns=(
                "set", "generator", "node", "centers are", "balanced accuracy", "deviation",
                "ROC-AUC", "negative centers", "positive centers", "AUC (paper)",
                "negative centers (paper)", "positive centers (paper)",
            ),
            rows=tuple(_client_rows(groups)),
            caption="Table 7 of the paper, whose AUC is balanced accuracy. Means and standard "
            "deviations over draws. Real rows are those that the generator has not seen.",
        ),
        ResultTable(
            name="worth",
            title="Scores by training and test rows",
            columns=(
                "set", "generator", "classifier", "real on real", "synthetic on real",
                "synthetic on synthetic", "gap", "real on real (ROC)", "synthetic on real (ROC)",
                "synthetic on synthetic (ROC)", "gap (ROC)",
            ),
            rows=utility_rows,
            caption="Balanced accuracy, then ROC-AUC. Gap: the score on synthetic test rows less "
            "that on real test rows. FedPNN with the paper's settings.",
        ),
        _compare_tests("promises", "FedPNN", utility_rows, names),
        _compare_tests("boosting", "gradient boosting", utility_rows, {}),
    )  # fmt: skip


def _set_rows(trials: Sequence[Trial]) -> Iterator[tuple[Scalar, ...]]:
    for trial in {trial.name: trial for trial in trials}.values():
        paper = PRINTED[trial.name]
        yield (
            trial.title, trial.n_real, trial.n_features, trial.n_made, trial.positive_share,
            paper.n_rows, paper.n_features, paper.n_synthetic,
        )  # fmt: skip


def _similarity_rows(groups: Groups) -> Iterator[tuple[Scalar, ...]]:
    for (name, generator), trials in groups.items():
        paper = PRINTED[name].similarity.get(generator)
        printed = (None, None) if paper is None else (paper.shape, paper.correlation)
        for place, measure in enumerate(("KSComplement", "correlation similarity")):
            ours = np.mean([trial.similarity[place] for trial in trials], axis=0).tolist()
            paper_values = printed[place]
            for index, label in enumerate(("negative", "positive")):
                printed_value = None if paper_values is None else paper_values[index]
                yield trials[0].title, generator, measure, label, ours[index], printed_value
            mean = None if paper_values is None else sum(paper_values) / 2
            yield trials[0].title, generator, measure, "mean", sum(ours) / 2, mean


def _client_rows(groups: Groups) -> Iterator[tuple[Scalar, ...]]:
    for (name, generator), trials in groups.items():
        for place, node in enumerate(trials[0].nodes):
            nodes = [trial.nodes[place] for trial in trials]
            scores = [score.balanced_accuracy for score in nodes]
            centers = np.mean([score.centers for score in nodes], axis=0).tolist()
            yield (
                trials[0].title,
                generator,
                node.node,
                node.stage,
                float(np.mean(scores)),
                float(np.std(scores, ddof=1)) if len(scores) > 1 else None,
                float(np.mean([score.roc_auc for score in nodes])),
                *centers,
                *_printed_scores(name, generator, node),
            )


def _printed_scores(name: str, generator: str, node: NodeScore) -> tuple[Scalar, Scalar, Scalar]:
    """Return a node's AUC and centers in the paper, else None."""
    paper = PRINTED[name].clients.get(generator)
    if paper is None or node.node == REAL:
        return None, None, None
    if node.node == SERVER:
        return paper.server, *paper.merged_centers
    client = int(node.node.removeprefix("client ")) - 1
    if node.stage == LOCAL:
        return paper.local[client], *paper.local_centers[client]
    return paper.merged[client], *paper.merged_centers


def _utility_rows(groups: Groups) -> Iterator[tuple[Scalar, ...]]:
    for (_, generator), trials in groups.items():
        of_boosting = [
            (trial.boosting.real_on_real, trial.boosting.synthetic_on_real,
             trial.boosting.synthetic_on_synthetic)
            for trial in trials
        ]  # fmt: skip
        of_fedpnn = [
            (trial.trained_on_real, _node_score(trial, REAL), _node_score(trial, SERVER))
            for trial in trials
        ]
        for classifier, each in (("FedPNN", of_fedpnn), ("gradient boosting", of_boosting)):
            cells: list[Scalar] = []
            for measure in ("balanced_accuracy", "roc_auc"):
                scores = [[getattr(score, measure) for score in trial] for trial in each]
                real_on_real, on_real, on_synthetic = np.mean(scores, axis=0).tolist()
                cells += [real_on_real, on_real, on_synthetic, on_synthetic - on_real]
            yield trials[0].title, generator, classifier, *cells


def _node_score(trial: Trial, node: str) -> NodeScore:
    return next(score for score in trial.nodes if score.node == node and score.stage == MERGED)


def _compare_tests(
    name: str, classifier: str, utility_rows: Rows, names: Mapping[str, str]
) -> ResultTable:
    """Return scores on synthetic and on real test rows, with the paper's."""
    rows: list[tuple[Scalar, ...]] = []
    for title, generator, row_classifier, _, on_real, on_synthetic, *_ in utility_rows:
        if row_classifier != classifier:
            continue
        paper = None
        if str(title) in names:
            paper = PRINTED[names[str(title)]].clients.get(str(generator))
        if paper is not None:
            rows.append((title, generator, "synthetic rows, paper", paper.server))
        rows.append((title, generator, "synthetic rows, ours", on_synthetic))
        rows.append((title, generator, "real rows, ours", on_real))
    return ResultTable(
        name=name,
        title=f"{classifier} tested on synthetic and on real rows",
        columns=("set", "generator", "tested on", "balanced accuracy"),
        rows=tuple(rows),
        caption="Trained on synthetic rows. Real rows are those that the generator has not seen.",
    )


def _test_figure(table: str, classifier: str) -> Figure:
    return Figure(
        name=table,
        kind="bar",
        title=f"{classifier} trained on synthetic rows",
        table=table,
        x="set",
        y="balanced accuracy",
        hue="tested on",
        facet="generator",
        caption="Real rows are those that the generator has not seen. omentum_surrogate is "
        "generated and has only the shape of OVA Omentum.",
    )


FIGURES = (
    _test_figure("promises", "FedPNN"),
    _test_figure("boosting", "Gradient boosting"),
    Figure(
        name="similarity",
        kind="scatter",
        title="Similarity of synthetic rows, the paper's and ours",
        table="similarity",
        x="paper",
        y="ours",
        hue="measure",
        diagonal=True,
        caption="A point for each data set, generator of the paper, and class or mean of both.",
    ),
)

NOTES = (
    "Table 7 of the paper tests on rows of the same generators as the training rows, with one "
    "generator per class. It measures how well the two generators can be distinguished. The node "
    "'real rows' and the table 'promises' show the scores on real rows.",
    "A generator trained for a single epoch shows how much of the score comes from the encodings "
    "of columns, which are fitted per class, before the networks have learned anything.",
)
