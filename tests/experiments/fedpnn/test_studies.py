"""FedPNN experiments write complete tables and resume from journals."""

import numpy as np
import pytest
from sklearn.base import BaseEstimator

from experiments.catalog import find_study
from experiments.datasets.omentum import omentum_surrogate
from experiments.fedpnn import real
from experiments.fedpnn.generated import (
    BRIEF,
    GENERATORS,
    OMENTUM,
    SINGLE,
    sample_synthetic_rows,
    split_real_rows,
)
from experiments.fedpnn.nodes import LOCAL, MERGED, REAL, SERVER, score_nodes
from experiments.fedpnn.printed import MODIFIED, PRINTED, VANILLA
from experiments.fedpnn.real import (
    BOOSTING,
    N_SETTINGS,
    OURS,
    PAPER,
    SETS,
    best_threshold,
    choose_threshold,
    interval,
    load_set,
    make_settings,
    predict_held_out,
    score_split,
)
from experiments.fedpnn.sensitivity import steps
from experiments.harness import Journal
from fedneighbors._typing import silent
from fedneighbors.baselines import FederatedBoostingClassifier, FederatedNaiveBayes
from fedneighbors.baselines._tabular import BASELINES
from fedneighbors.errors import RecordError
from fedneighbors.methods.fedpnn.estimator import FedPNNClassifier
from fedneighbors.metrics import balanced_accuracy
from fedneighbors.records import read_record, write_record
from fedneighbors.runs._fedpnn import run
from fedneighbors.runs._figures import RunTable


def as_dicts(table):
    return [dict(zip(table.columns, row, strict=True)) for row in table.rows]


@pytest.fixture(scope="module")
def quick_run(tmp_path_factory):
    """Return a function that runs an experiment once and returns its record and journal."""
    runs = {}

    def run_once(name):
        if name not in runs:
            folder = tmp_path_factory.mktemp(name)
            record = find_study(name).run(quick=True, journal=folder / "journal.jsonl")
            write_record(record, folder / "record.jsonl")
            runs[name] = read_record(folder / "record.jsonl"), folder / "journal.jsonl"
        return runs[name]

    return run_once


@pytest.fixture
def table7(quick_run):
    return {table.name: as_dicts(table) for table in quick_run("fedpnn.table7")[0].tables}


@pytest.mark.parametrize("name", ["fedpnn.real", "fedpnn.noniid"])
def test_a_quick_run_scores_every_method_and_can_be_read_again(name, quick_run):
    (table,) = quick_run(name)[0].tables
    rows = as_dicts(table)

    assert {row["method"] for row in rows} == {OURS, PAPER, BOOSTING, *BASELINES}
    assert all(0.4 < row["ROC-AUC"] <= 1 for row in rows)
    assert all(row["balanced accuracy"] > 0.9 for row in rows if row["method"] == OURS)
    assert all(row["balanced accuracy, chosen threshold"] > 0.7 for row in rows)


@pytest.mark.parametrize("seed", range(20))
def test_the_best_threshold_is_the_best_of_all(seed):
    rng = np.random.default_rng(seed)
    shares, y = rng.integers(8, size=30) / 7, rng.permutation(np.arange(30) % 3 == 0).astype(int)

    threshold = best_threshold(shares, y)

    cuts = [-1, *(np.arange(7) / 7 + 1 / 14), 2]
    scores = [balanced_accuracy(y, (shares > cut).astype(int)) for cut in cuts]
    assert balanced_accuracy(y, (shares > threshold).astype(int)) == max(scores)
    assert threshold not in shares


class NewRowsOnly(BaseEstimator):
    """Model whose share is the column, for rows that it was not trained on."""

    def fit(self, x, _y, parties):
        assert len(parties) == len(x)
        self.seen_ = set(x[:, 0])
        return self

    def predict_proba(self, x):
        assert not self.seen_ & set(x[:, 0])
        return np.column_stack([1 - x[:, 0], x[:, 0]])


def test_a_threshold_is_chosen_on_rows_held_out_of_training():
    x = np.arange(60)[:, None] / 60

    threshold = choose_threshold(NewRowsOnly(), x, (x[:, 0] > 0.7).astype(int), x, seed=0)

    assert threshold == pytest.approx(42.5 / 60)


def test_few_rare_rows_are_held_out_in_fifths():
    x, y = np.arange(100)[:, None] / 100, (np.arange(100) >= 40).astype(int)
    sizes = []

    class Recorder(NewRowsOnly):
        def fit(self, x, y, parties):
            sizes.append(len(x))
            return super().fit(x, y, parties)

    shares = [predict_held_out(Recorder(), x, labels, x, seed=0) for labels in (y, 1 - y)]

    assert sizes == [66, 67, 67] + [80] * 5
    assert all((each == x[:, 0]).all() for each in shares)


@pytest.mark.parametrize("name", SETS)
def test_rivals_choose_among_as_many_settings_as_fedpnn(name):
    settings = make_settings(name)

    assert {method: len(models) for method, models in settings.items()} == {
        PAPER: 1,
        **dict.fromkeys([OURS, BOOSTING, *BASELINES], N_SETTINGS),
    }
    assert settings[OURS][0].get_params() == FedPNNClassifier(classes=(0, 1)).get_params()
    assert settings[BOOSTING][0].get_params() == (
        FederatedBoostingClassifier(class_weight="balanced").get_params()
    )


class ConstantShares(BaseEstimator):
    """Model that gives every row the same share."""

    def fit(self, _x, _y, parties):
        return self

    def predict_proba(self, x):
        return np.full((len(x), 2), 0.5)


def test_chosen_settings_are_those_that_rank_held_out_rows_best(monkeypatch):
    worse, better = ConstantShares(), FederatedNaiveBayes()
    monkeypatch.setattr(real, "make_settings", lambda _: {"NB": (worse, better, worse)})

    (scores,) = score_split("Breast Cancer Wisconsin", 0, 0, 2, None, N_SETTINGS).values()
    (defaults,) = score_split("Breast Cancer Wisconsin", 0, 0, 2, None).values()

    assert scores[-1] == 1
    assert scores[3] > 0.95 > scores[1] == 0.5
    assert scores[:3] == defaults[:3]
    assert defaults[1:3] == defaults[3:5]


@pytest.mark.parametrize(
    ("name", "shape", "n_rare"),
    list(zip(SETS, [(699, 9), (7027, 64), (14240, 29)], [241, 271, 23], strict=True)),
)
def test_data_sets_have_missing_cells_and_a_rare_class(name, shape, n_rare):
    x, y = load_set(name)

    assert x.shape == shape
    assert y.sum() == n_rare
    assert np.isnan(x).any() == (name != "Credit card, subset")


def test_overlapping_training_sets_widen_the_interval():
    differences = [0.1, 0.3, 0.2, 0.4]

    low, high = interval(differences)

    assert (low + high) / 2 == pytest.approx(0.25)
    # t quantile for 3 degrees of freedom 3.1824; deviation .1291; variance factor 1/4 + 1, not 1/4
    assert high - low == pytest.approx(2 * 3.182446 * 0.1290994 * np.sqrt(1.25), rel=1e-5)


def test_a_run_is_scored_with_baselines_and_lists_exposures():
    x, y = load_set("Breast Cancer Wisconsin")
    names = tuple(f"c{j}" for j in range(9))
    owner = np.array(["a", "b", "c"])[np.arange(len(y)) % 3]

    model, record = run(RunTable(x, y, owner, names), parameters={}, progress=silent)

    tables = {table.name: table for table in record.tables}
    summary, exposure = as_dicts(tables["summary"]), as_dicts(tables["exposure"])
    assert summary[0]["balanced accuracy"] > 0.93
    assert summary[-1]["balanced accuracy"] == 0.5
    assert [row["party"] for row in exposure] == ["a", "b", "c"]
    assert all(row["fewest"] >= 5 and row["risk"] <= 0.2 for row in exposure)
    assert model.feature_names_in_.tolist() == list(names)


def test_table_7_has_every_node_and_the_papers_values(table7):
    rows = table7["clients"]
    places = [(f"client {c}", stage) for stage in (LOCAL, MERGED) for c in (1, 2)]
    places += [(SERVER, MERGED), (REAL, MERGED)]

    assert [(r["generator"], r["node"], r["centers are"]) for r in rows] == [
        (generator, *place) for generator in GENERATORS for place in places
    ]
    printed = [(r["AUC (paper)"], r["positive centers (paper)"]) for r in rows]
    vanilla = [(1.0, 27), (0.988, 28), (0.976, 17), (0.927, 17), (0.957, 17)]
    modified = [(1.0, 27), (1.0, 27), (1.0, 18), (1.0, 18), (0.989, 18)]
    assert printed[:12] == [*vanilla, (None, None), *modified, (None, None)]
    assert set(printed[12:]) == {(None, None)}
    assert all(0 <= r["balanced accuracy"] <= 1 and r["negative centers"] >= 1 for r in rows)


def test_table_7_compares_scores_on_synthetic_and_real_rows(table7):
    utility, promises = table7["worth"], table7["promises"]
    fedpnn_rows = [row for row in utility if row["classifier"] == "FedPNN"]
    our_rows = [row for row in promises if row["tested on"] == "real rows, ours"]

    assert len(utility) == 2 * len(GENERATORS)
    for row in utility:
        gap = row["synthetic on synthetic"] - row["synthetic on real"]
        assert row["gap"] == pytest.approx(gap, abs=1e-12)
        assert row["real on real"] > 0.85
    assert [r["balanced accuracy"] for r in our_rows] == [
        r["synthetic on real"] for r in fedpnn_rows
    ]
    assert {r["generator"] for r in promises if r["tested on"] == "synthetic rows, paper"} == {
        VANILLA,
        MODIFIED,
    }


def test_similarity_is_reported_by_class_and_as_a_mean(table7):
    rows = {(r["generator"], r["measure"], r["class"]): r for r in table7["similarity"]}
    (size,) = table7["sets"]

    cells = [rows[MODIFIED, "KSComplement", label] for label in ("negative", "positive", "mean")]
    assert cells[2]["ours"] == pytest.approx((cells[0]["ours"] + cells[1]["ours"]) / 2)
    assert [row["paper"] for row in cells] == [0.877, 0.886, 0.8815]
    assert all(0 <= row["ours"] <= 1 for row in rows.values())
    assert (size["rows"], size["synthetic rows"], size["synthetic rows (paper)"]) == (699, 916, 916)


@pytest.mark.parametrize(
    ("measure", "means"),
    [
        ("shape", [(0.8635, 0.882), (0.716, 0.676), (0.8535, 0.804), (0.7706, 0.293)]),
        ("correlation", [(0.878, 0.878), (0.916, 0.916), (0.918, 0.920), (0.783, 0.913)]),
    ],
)
def test_printed_class_values_have_the_papers_means(measure, means):
    """Tables 5 and 6 print the mean of both classes, rounded or truncated to three places."""
    for paper, (vanilla, modified) in zip(PRINTED.values(), means, strict=True):
        for generator, mean in ((VANILLA, vanilla), (MODIFIED, modified)):
            class_values = getattr(paper.similarity[generator], measure)
            assert np.mean(class_values) == pytest.approx(mean, abs=1.1e-3)


def test_generators_return_the_requested_number_of_rows():
    real = split_real_rows("Breast Cancer Wisconsin", 0)

    for generator in (SINGLE, BRIEF):
        x, y = sample_synthetic_rows("Breast Cancer Wisconsin", generator, real, seed=0, quick=True)

        assert x.shape == (916, 9)
        assert np.bincount(y).tolist() == [458, 458]


def test_omentum_columns_are_chosen_on_generator_rows(tmp_path, monkeypatch):
    data = omentum_surrogate(n_features=600)
    x = data.x[np.argsort(-data.y, kind="stable")[:200]].round(3)
    x[:77, 599] += 9
    header = [f"@attribute g{j} real" for j in range(600)]
    labels = ["Omentum"] * 77 + ["Other"] * 123
    rows = [",".join([*map(str, row), label]) for row, label in zip(x, labels, strict=True)]
    (tmp_path / "fedpnn").mkdir()
    text = "\n".join([*header, "@attribute Tissue {Omentum,Other}", "@data", *rows])
    (tmp_path / "fedpnn" / "OVA_Omentum.arff").write_text(text)
    monkeypatch.setenv("FEDNEIGHBORS_DATA", str(tmp_path))

    real = split_real_rows(OMENTUM, 0)

    assert real.title == "OVA Omentum"
    assert (real.train[0].shape, real.test[0].shape) == ((140, 500), (60, 500))
    (x_train, y_train), (x_test, y_test) = real.train, real.test
    for part, label in ((x_train, y_train), (x_test, y_test)):
        assert part[label == 1, -1].min() > part[label == 0, -1].mean() + 3


def test_nodes_with_separable_rows_score_1_and_share_centers():
    rng = np.random.default_rng(0)
    y = np.arange(400) % 2
    x = rng.normal(size=(400, 3)) * 0.1 + 5 * y[:, None]

    scores = score_nodes((x[:300], y[:300]), (x[300:], y[300:]), (0.1, 0.1), seed=0)

    assert all(score.balanced_accuracy == score.roc_auc == 1 for score in scores)
    merged = {score.centers for score in scores if score.stage == MERGED}
    assert len(merged) == 1
    assert [score.node for score in scores] == ["client 1", "client 2"] * 2 + [SERVER, REAL]


def test_steps_of_a_sweep_are_positive():
    assert steps(0.17) == [0.09, 0.11, 0.13, 0.15, 0.17, 0.19, 0.21, 0.23, 0.25]
    assert steps(0.05) == [0.01, 0.03, 0.05, 0.07, 0.09, 0.11, 0.13]
    assert steps(0.19, quick=True) == [0.17, 0.19, 0.21]


def test_larger_thresholds_give_fewer_centers(quick_run):
    record, _ = quick_run("fedpnn.sensitivity")

    tables = {table.name: table for table in record.tables}
    for name, best in (("server", 0.17), ("client", 0.19)):
        table = tables[name]
        by_class = as_dicts(tables[f"{name}-centers"])
        assert [row["centers"] for row in by_class if row["centers of"] == "real, negative"] == [
            row["negative centers"] for row in as_dicts(table) if row["rows"] == "real"
        ]
        for kind in ("synthetic", "synthetic, tested on real", "real"):
            sweep = [row for row in as_dicts(table) if row["rows"] == kind]
            assert [row["Dthr"] for row in sweep] == steps(best, quick=True)
            assert sweep[0]["centers"] > sweep[-1]["centers"]
            assert all(
                row["centers"] == row["negative centers"] + row["positive centers"] for row in sweep
            )


@pytest.mark.parametrize("name", ["fedpnn.table7", "fedpnn.sensitivity", "fedpnn.noniid"])
def test_a_run_with_a_journal_resumes(name, quick_run, tmp_path):
    first, journal = quick_run(name)
    lines = journal.read_bytes().splitlines(keepends=True)
    truncated = tmp_path / "journal.jsonl"
    truncated.write_bytes(b"".join(lines[:-1]) + lines[-1][:50])

    again = find_study(name).run(quick=True, journal=truncated)

    assert again.tables == first.tables
    assert truncated.read_bytes() == b"".join(lines)


def test_a_measurement_is_not_repeated(tmp_path):
    measured = []

    def outcome(job, path=tmp_path / "journal.jsonl"):
        return Journal(path).get_or_measure(
            job, measure=lambda: measured.append(job) or {"at": job}, encode=dict, decode=dict
        )

    outcomes = [outcome(["a", 1]), outcome(["a", 1]), outcome(["a", 2]), outcome(["a", 1], None)]

    assert outcomes == [{"at": ["a", 1]}, {"at": ["a", 1]}, {"at": ["a", 2]}, {"at": ["a", 1]}]
    assert measured == [["a", 1], ["a", 2], ["a", 1]]


def test_an_invalid_line_is_refused_by_number(tmp_path):
    path = tmp_path / "journal.jsonl"
    path.write_text('{"job": ["b"], "outcome": 1}\n{"other": 1}\n')

    with pytest.raises(RecordError, match=r"journal\.jsonl, line 2"):
        Journal(path).get_or_measure(["a"], measure=dict, encode=dict, decode=dict)
