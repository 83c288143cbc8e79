"""Comparison of methods: partitions of rows, choices without test rows, complete tables."""

import json
from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from experiments.catalog import find_study
from experiments.datasets.catalog import IMAGE_SHAPES
from experiments.datasets.cifar import CIFAR_FOLDERS, SAMPLE_FILE
from experiments.datasets.femnist import FEMNIST_FOLDER
from experiments.knnper import trials
from experiments.knnper.comparison import (
    BASELINES,
    DEFAULT,
    DISCRIMINANTS,
    METHODS,
    OURS,
    PAPER,
    RIVALS,
    add_discriminants,
    fit_method,
    make_estimator,
    score_method,
)
from experiments.knnper.federations import (
    DATA_FEDERATIONS,
    FEDERATIONS,
    Scope,
    load_roles,
    make_clients,
)
from experiments.knnper.tables import PAPER_FEDERATIONS
from fedneighbors import baselines
from fedneighbors.methods.knnper import KNNPerClassifier

SETTINGS = {"hidden": (16,), "n_rounds": 2, "random_state": 0}
SMALL = Scope("digits", 500, 8, 3, ())


@cache
def clients():
    return make_clients("label skew", SMALL, 0)


BUNDLED = [
    name for name, (data, _) in FEDERATIONS.items() if data in ("mnist", "letter", "omniglot")
]


@pytest.mark.parametrize("name", BUNDLED)
def test_every_row_is_training_or_test_row_of_one_client(name):
    data = FEDERATIONS[name][0]
    scope = Scope("digits" if data == "mnist" else data, 600, 8, 3, ())

    found = make_clients(name, scope, 3)

    rows = [found.rows(client, test=test) for client in found.names for test in (False, True)]
    assert sorted(np.concatenate(rows).tolist()) == list(range(len(found.y)))
    assert set(found.unseen) < set(found.names)
    assert not np.isin(found.owners[found.fit], found.unseen).any()
    assert not found.test[found.fit].any()


def test_clients_have_two_classes_each():
    found = make_clients("two classes each", SMALL, 1)

    assert all(len(set(found.y[found.owners == name].tolist())) == 2 for name in found.names)


def test_groups_of_clients_have_different_label_meanings():
    same, other = make_clients("one meaning", SMALL, 1), make_clients("permuted labels", SMALL, 1)

    assert same.x.tolist() == other.x.tolist()
    has_changed = {name: (same.y != other.y)[same.owners == name].any() for name in same.names}
    # one group of four keeps its labels
    assert sorted(has_changed.values()) == [False] * 2 + [True] * 6


def test_a_method_is_scored_on_the_test_rows_of_all_clients():
    estimator, _ = fit_method("FedAvg+", clients(), SETTINGS, parameters={"learning_rate": 0.1})

    scores = score_method(estimator, clients())

    expected = {name: len(clients().rows(name, test=True)) for name in clients().names}
    assert {name: n for name, (_, n) in scores.test.items()} == expected
    assert all(0 <= n_hits <= n for n_hits, n in scores.test.values())
    assert set(estimator.clients_) == set(clients().names) - set(clients().unseen)


@pytest.mark.parametrize("method", ["FedAvg+", "FedRep", PAPER])
def test_choices_do_not_depend_on_test_rows(method):
    rng = np.random.default_rng(0)
    scrambled = clients().y.copy()
    scrambled[clients().test] = rng.permutation(scrambled[clients().test])

    _, first = fit_method(method, clients(), SETTINGS)
    _, second = fit_method(method, replace(clients(), y=scrambled), SETTINGS)

    assert first == second
    assert "learning_rate" in first


@pytest.mark.parametrize("method", METHODS)
def test_every_method_has_three_rates_and_four_settings_of_its_own(method, monkeypatch):
    grids = []

    class Tuned:
        parameters, scores = {"learning_rate": 0.1}, (0.5,)
        estimator = None

    def tune(estimator, *_, grid):
        grids.append([estimator.get_params(deep=False).keys() & each.keys() for each in grid])
        assert all(len(known) == len(each) for known, each in zip(grids[-1], grid, strict=True))
        return Tuned

    monkeypatch.setattr(baselines, "tune", tune)
    _, chosen = fit_method(method, clients(), SETTINGS)

    if method in (DISCRIMINANTS, DEFAULT):
        assert (grids, chosen) == ([], {})
    else:
        assert [len(grid) for grid in grids] == [3, 4]
        assert grids[0] == [{"learning_rate"}] * 3
    if method in ("FedRep", "FedPer"):
        assert any("rate" in name for names in grids[1] for name in names)


def test_the_better_of_both_stages_is_fitted():
    estimator, chosen = fit_method("FedAvg+", clients(), SETTINGS)

    separate = make_estimator("FedAvg+", clients(), SETTINGS).set_params(**chosen)
    mask = clients().fit
    separate.fit(clients().x[mask], clients().y[mask], parties=clients().owners[mask])
    assert set(chosen) == {"learning_rate", "tuning_epochs", "tuning_rate"}
    assert score_method(estimator, clients()) == score_method(separate, clients())


def test_default_settings_are_those_of_users():
    default = make_estimator(DEFAULT, clients(), SETTINGS)
    changed = {
        name
        for name, value in default.get_params(deep=False).items()
        if value != KNNPerClassifier().get_params(deep=False)[name]
    }

    assert changed == {"classes"}
    assert make_estimator(DISCRIMINANTS, clients(), SETTINGS).combine == "paper"


def test_discriminants_are_further_columns_from_training_rows_only():
    scrambled = clients().y.copy()
    left_out = ~clients().fit
    scrambled[left_out] = np.random.default_rng(0).permutation(scrambled[left_out])

    extended = add_discriminants(clients())
    same = add_discriminants(replace(clients(), y=scrambled))

    width = clients().x.shape[1]
    assert width < extended.x.shape[1] <= width + 9
    np.testing.assert_array_equal(extended.x[:, :width], clients().x)
    np.testing.assert_array_equal(extended.x, same.x)
    np.testing.assert_allclose(extended.x[clients().fit, width:].std(axis=0), 1)


@cache
def quick_claims():
    return find_study("knnper.claims").run(quick=True)


def test_the_tables_name_every_method():
    found = {table.name: table for table in quick_claims().tables}

    for kind in ("seen", "unseen"):
        rows = [dict(zip(found[kind].columns, row, strict=True)) for row in found[kind].rows]
        assert [row["method"] for row in rows] == [*BASELINES, PAPER, OURS, DISCRIMINANTS, DEFAULT]
        for row in rows:
            assert row["from"] <= row["pool is better by"] <= row["to"]
            assert (row["with discriminants"] is None) == (row["method"] not in RIVALS)
        assert [row["to"] for row in rows if row["method"] == OURS] == [0]
    assert len(found["chosen"].rows) == len(METHODS) + len(RIVALS)
    assert ("CIFAR-10", "Ditto", 0.8, 0.665) in found["paper-seen"].rows
    assert ("Shakespeare", "kNN-Per", 0.507, 0.642) in found["paper-unseen"].rows


def test_weights_of_the_experts_are_in_a_table():
    [table] = [table for table in quick_claims().tables if table.name == "experts"]

    rows = [dict(zip(table.columns, row, strict=True)) for row in table.rows]
    assert {row["method"] for row in rows} == {OURS, DEFAULT}
    assert all(0 <= row["lowest"] <= row["weight"] <= row["highest"] for row in rows)
    assert {"shared model", "memory", "discriminant head"} <= {row["expert"] for row in rows}


TWO_METHODS = trials.Plan(("label skew",), ("FedAvg", OURS), n_seeds=2, quick=True)


def run_plan(plan, journal=None):
    return trials.measure(plan, seed=0, n_jobs=1, progress=lambda *_: None, journal=journal)


def test_a_comparison_resumes_from_its_journal(tmp_path, monkeypatch):
    journal = tmp_path / "journal"
    first = run_plan(TWO_METHODS, journal)
    lines = journal.read_text().splitlines(keepends=True)
    assert len(lines) == 6  # FedAvg with and without discriminants and the pool, two seeds
    journal.write_text("".join(lines[:-1]) + lines[-1][:50])  # interrupted in the last line

    fit_jobs = []
    monkeypatch.setattr(
        trials, "fit_method", lambda *job, **kw: fit_jobs.append(job[0]) or fit_method(*job, **kw)
    )
    assert run_plan(TWO_METHODS, journal) == first
    assert fit_jobs == [OURS]
    assert run_plan(TWO_METHODS) == first


def test_published_plans_have_200_rounds_and_five_seeds():
    plan = trials.Plan(PAPER_FEDERATIONS)

    assert (plan.n_rounds, plan.n_seeds, plan.rates) == (200, 5, (0.03, 0.1, 0.3))
    assert plan.methods == METHODS
    assert plan.with_discriminants


IMAGES = np.random.default_rng(0).integers(256, size=(240, 3, 32, 32)).astype(np.uint8)


def write_cifar(folder, name):
    """Write 240 images in the official binary format; the labels take turns."""
    subfolder = folder / CIFAR_FOLDERS[name]
    subfolder.mkdir(parents=True)
    files = {
        "cifar10": [*(f"data_batch_{n}.bin" for n in range(1, 6)), "test_batch.bin"],
        "cifar100": ["train.bin", "test.bin"],
    }[name]
    for file, rows in zip(files, np.array_split(np.arange(240), len(files)), strict=True):
        records = [
            bytes([row % 10] if name == "cifar10" else [row % 20, row % 20 * 5])
            + IMAGES[row].tobytes()
            for row in rows.tolist()
        ]
        (subfolder / file).write_bytes(b"".join(records))


def write_femnist(folder):
    subfolder = folder / FEMNIST_FOLDER / "all_data"
    subfolder.mkdir(parents=True)
    writers = {
        f"w{n}": {"x": np.linspace(0, 1, 30 * 784).reshape(30, 784).tolist(), "y": [*range(30)]}
        for n in range(8)
    }
    content = {"users": [*writers], "num_samples": [30] * 8, "user_data": writers}
    (subfolder / "a.json").write_text(json.dumps(content))


def write_images(folder, name):
    if name in CIFAR_FOLDERS:
        write_cifar(folder, name)
    elif name == "femnist":
        write_femnist(folder)
    elif name == "cifar10_12k":
        (folder / "images").mkdir()
        np.savez(
            folder / SAMPLE_FILE,
            x=IMAGES.transpose(0, 2, 3, 1),
            y=(np.arange(240) % 10).astype(np.uint8),
        )


@pytest.mark.parametrize("as_images", [False, True])
@pytest.mark.parametrize("data", ["cifar10", "cifar10_12k", "cifar100", "femnist"])
def test_image_sets_become_federations(data, as_images, tmp_path, monkeypatch):
    monkeypatch.setenv("FEDNEIGHBORS_DATA", str(tmp_path))
    write_images(tmp_path, data)

    for name in DATA_FEDERATIONS[data]:
        found = make_clients(name, Scope(data, 120, 6, 2, (), as_images), 0)

        shape = IMAGE_SHAPES[data]
        n_columns = np.prod(shape) // 4
        assert found.x.shape[1:] == (shape if as_images else (n_columns,))
        assert (found.x.min() >= -1, found.x.max()) == (True, 1)
        assert len(found.x) == 120
        assert len(found.names) == 6
        assert found.n_classes <= {"cifar100": 100, "femnist": 62}.get(data, 10)


@pytest.mark.parametrize(
    ("data", "model"), [("cifar10", "cnn"), ("cifar100", "mobilenet"), ("femnist", "")]
)
def test_table_2_runs_on_the_papers_images(data, model, tmp_path, monkeypatch):
    monkeypatch.setenv("FEDNEIGHBORS_DATA", str(tmp_path))
    write_images(tmp_path, data)
    study = find_study("knnper.table2")
    fitted = []

    def fit(method, found, settings, **_):
        fitted.append((method, settings.get("model")))
        small = {"model": "cnn"} if model else {}  # a MobileNet takes a minute
        parameters, settings = {"learning_rate": 0.01}, settings | {"n_rounds": 1} | small
        return fit_method(method, found, settings, parameters=parameters)

    monkeypatch.setattr(trials, "fit_method", fit)
    monkeypatch.setattr(
        trials, "_list_tasks", lambda plan, name: [trials.Task(name, m) for m in ("FedAvg", OURS)]
    )

    record = study.run(quick=True, data=data, model=model)

    assert fitted == [("FedAvg", model or None), (OURS, model or None)]
    assert record.parameters["data"] == data
    assert record.parameters["model"] == (model or "perceptron")
    [seen] = [table for table in record.tables if table.name == "seen"]
    assert {row[0] for row in seen.rows} <= set(DATA_FEDERATIONS[data])


def test_windows_of_roles_do_not_overlap():
    found = load_roles(5, 30, 2)

    assert found.x.shape == (5 * 30, 24)
    assert len(found.names) == 5
    assert found.x.dtype == np.int64
    assert {len(found.rows(name, test=True)) for name in found.names} == {8}
    assert len({tuple(row) for row in found.x.tolist()}) > 145


def test_the_pool_and_baselines_predict_next_characters():
    record = find_study("knnper.shakespeare").run(quick=True)

    seen, unseen, *_ = record.tables
    methods = [
        "FedAvg", "FedAvg, local class shares", "FedAvg+", "head fine-tuning", "Ditto", "FedRep",
        PAPER, OURS,
    ]  # fmt: skip
    assert [row[1] for row in seen.rows] == methods
    assert [row[1] for row in unseen.rows] == methods
