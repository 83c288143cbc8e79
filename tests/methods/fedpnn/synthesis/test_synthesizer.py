import subprocess
import sys

import numpy as np
import pandas as pd
import pytest
import torch

from fedneighbors.datasets import Table
from fedneighbors.errors import DataError, MissingExtraError
from fedneighbors.methods.fedpnn.synthesis import TabularSynthesizer, ks_complement
from fedneighbors.methods.fedpnn.synthesis._encoding import Layout
from fedneighbors.methods.fedpnn.synthesis._generation import (
    Picks,
    RowsByCategory,
    TrainingSettings,
)
from fedneighbors.methods.fedpnn.synthesis._training import train

SMALL = {"generator": (8,), "critic": (8,), "epochs": 2, "embedding": 8}


def make_small_synthesizer(**options):
    return TabularSynthesizer(**{**SMALL, **options})


def make_companies(n=120, seed=0):
    """Draw a data frame with numbers, text, missing cells and a constant; and labels."""
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame(
        {
            "staff": rng.integers(1, 400, n),
            "profit": rng.gamma(2.0, 1_000.0, n),
            "city": rng.choice(["Oslo", "Rome", "Lima"], n, p=[0.6, 0.3, 0.1]),
            "year": 2020.0,
        }
    )
    frame.loc[::5, "profit"] = np.nan
    frame.loc[::7, "city"] = None
    return frame, np.where(rng.random(n) < 0.3, "failed", "lives")


def are_equal(a, b):
    return a[0].equals(b[0]) and (a[1] == b[1]).all()


@pytest.mark.parametrize("noise", ["normal", "mixture", "concat"])
@pytest.mark.parametrize("per_class", [True, False])
def test_same_seed_gives_the_same_rows(noise, per_class):
    x, y = make_companies()

    runs = [
        make_small_synthesizer(noise=noise, per_class=per_class).fit(x, y).sample(30)
        for _ in range(2)
    ]

    assert are_equal(*runs)


def test_rows_do_not_depend_on_threads():
    x, y = make_companies()
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        of_two_threads = make_small_synthesizer().fit(x, y).sample(30)
        n_after_fit = torch.get_num_threads()
        torch.set_num_threads(1)
        of_one_thread = make_small_synthesizer().fit(x, y).sample(30)
    finally:
        torch.set_num_threads(before)

    assert n_after_fit == 2
    assert are_equal(of_one_thread, of_two_threads)


def test_other_seeds_give_other_rows():
    x, _ = make_companies()
    synthesizer = make_small_synthesizer().fit(x)

    assert not synthesizer.sample(20).equals(synthesizer.sample(20, random_state=1))
    assert not synthesizer.sample(20).equals(
        make_small_synthesizer(random_state=1).fit(x).sample(20)
    )


def test_noise_distributions_give_different_rows():
    x, _ = make_companies()

    synthetic = [
        make_small_synthesizer(noise=noise).fit(x).sample(20)
        for noise in ("normal", "mixture", "concat")
    ]

    assert not synthetic[0].equals(synthetic[1])
    assert not synthetic[1].equals(synthetic[2])


def test_synthetic_rows_have_the_columns_of_real_rows():
    x, y = make_companies()

    synthetic, labels = make_small_synthesizer().fit(x, y).sample(400)

    assert synthetic.columns.tolist() == x.columns.tolist()
    assert set(synthetic["city"].dropna()) == {"Oslo", "Rome", "Lima"}
    assert 0.05 < synthetic["city"].isna().mean() < 0.3
    assert 0.1 < synthetic["profit"].isna().mean() < 0.35
    assert (synthetic["year"] == 2020.0).all()
    assert (synthetic["staff"] == synthetic["staff"].round()).all()
    assert set(labels) == {"failed", "lives"}


def test_classes_keep_their_frequencies_or_are_selected():
    x, y = make_companies()

    for per_class in (True, False):
        synthesizer = make_small_synthesizer(per_class=per_class, epochs=20).fit(x, y)
        _, labels = synthesizer.sample(200)
        synthetic, selected_labels = synthesizer.sample(7, "failed")
        assert len(synthetic) == 7
        assert set(selected_labels) == {"failed"}
        if per_class:
            assert (labels == "failed").mean() == pytest.approx((y == "failed").mean(), abs=0.005)


def test_generators_per_class_separate_classes_after_one_epoch():
    rng = np.random.default_rng(0)
    y = np.repeat([0, 1], 100)
    x = rng.normal(size=(200, 1)) + 20.0 * y[:, None]

    synthetic, labels = make_small_synthesizer(epochs=1).fit(x, y).sample(100)

    assert (synthetic[labels == 0] < 10).all()
    assert (synthetic[labels == 1] > 10).all()


def test_settings_can_differ_by_class():
    x, y = make_companies()

    model = make_small_synthesizer(
        generator={"failed": (4,), "lives": (8, 8)}, epochs={"failed": 1, "lives": 2}
    )

    failed, lives = model.fit(x, y).model_.parts
    assert [len(bias) for _, bias in failed.generator.hidden] == [4]
    assert [len(bias) for _, bias in lives.generator.hidden] == [8, 8]


def test_progress_counts_the_epochs_of_all_classes():
    x, y = make_companies()
    steps = []

    make_small_synthesizer(epochs={"failed": 1, "lives": 2}).fit(
        x, y, progress=lambda *step: steps.append(step)
    )

    assert [step[:2] for step in steps] == [(1, 3), (2, 3), (3, 3)]
    assert steps[0][2] == "training a generator, class 'failed'"


def test_samples_have_the_input_format():
    x, _ = make_companies()
    table = Table.from_frame(x)

    assert isinstance(make_small_synthesizer().fit(table).sample(3), Table)
    assert isinstance(make_small_synthesizer().fit(x).sample(3), pd.DataFrame)
    numbers = make_small_synthesizer().fit(x[["staff", "profit"]].to_numpy()).sample(3)
    objects = make_small_synthesizer().fit(x.to_numpy(dtype=object)).sample(3)
    assert (numbers.dtype, numbers.shape) == (np.float64, (3, 2))
    assert (objects.dtype, objects.shape) == (object, (3, 4))


def test_numeric_columns_can_be_nominal():
    rng = np.random.default_rng(1)
    x = np.c_[rng.choice([3.0, 7.5, np.nan], 90), rng.normal(size=90)]

    by_position = make_small_synthesizer(categorical_features=[0]).fit(x).sample(50)
    by_name = (
        make_small_synthesizer(categorical_features=["a"])
        .fit(pd.DataFrame(x, columns=["a", "b"]))
        .sample(50)
    )

    assert set(by_position[~np.isnan(by_position[:, 0]), 0]) <= {3.0, 7.5}
    assert (by_name.to_numpy()[:, 1] == by_position[:, 1]).all()


def test_class_smaller_than_a_pack_is_learned():
    rng = np.random.default_rng(2)
    x, y = rng.normal(size=(43, 2)), np.repeat(["many", "few"], [40, 3])

    synthetic, _ = (
        make_small_synthesizer(batch_size=500, pac=10, min_count=1).fit(x, y).sample(5, "few")
    )

    assert np.isfinite(synthetic).all()


def test_class_of_one_row_is_rejected_by_name():
    x = np.zeros((4, 1))

    with pytest.raises(DataError, match=r"class 'b' has 1 row .* expected 2 or more"):
        make_small_synthesizer(min_count=1).fit(x, ["a", "a", "a", "b"])
    with pytest.raises(DataError, match="the table has 1 row"):
        make_small_synthesizer().fit(x[:1])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"noise": "uniform"}, "noise must be one of"),
        ({"epochs": 0}, "epochs must be at least 1"),
        ({"batch_size": 5}, "batch_size=5 is less than pac=10"),
        ({"learning_rate": 0.0}, "learning_rate must lie in"),
        ({"dropout": 1.0}, "dropout must lie in"),
        ({"generator": (8, 0)}, "a layer of generator must be at least 1"),
        ({"epochs": {"lives": 3}}, "epochs must name the classes"),
        ({"epochs": {"lives": 3}, "per_class": False}, "one generator for all rows"),
        ({"categorical_features": ["town"]}, "no column 'town'"),
        ({"categorical_features": [9]}, "no column 9"),
    ],
)
def test_invalid_settings_raise_with_advice(options, message):
    x, y = make_companies(30)

    with pytest.raises(ValueError, match=message):
        make_small_synthesizer(**options).fit(x, y)


def test_non_integer_size_is_a_type_error():
    with pytest.raises(TypeError, match=r"epochs must be an integer, got 2.5"):
        make_small_synthesizer(epochs=2.5).fit(np.zeros((9, 1)))


def test_invalid_samples_are_rejected():
    x, y = make_companies(40)
    labeled, unlabeled = make_small_synthesizer().fit(x, y), make_small_synthesizer().fit(x)

    with pytest.raises(ValueError, match="there is no class 'sold'"):
        labeled.sample(3, "sold")
    with pytest.raises(ValueError, match="there were no labels in the fit"):
        unlabeled.sample(3, "lives")
    for n in (0, -1, 2.5, True):
        with pytest.raises(ValueError, match="n must be a positive integer"):
            unlabeled.sample(n)


def test_diverging_training_raises_with_advice():
    rows = np.full((20, 3), np.nan, np.float32)
    layout = Layout(widths=(2,), scalars=(0,))
    settings = TrainingSettings(generator=(4,), critic=(4,), epochs=2, informed=False)

    with pytest.raises(ValueError, match=r"diverged with learning_rate=0.0002; lower it"):
        train(rows, RowsByCategory((), ()), layout, (), settings, seed=[0])


def test_infinite_numbers_are_rejected_before_training():
    with pytest.raises(DataError, match="infinite"):
        make_small_synthesizer().fit(np.append(np.arange(50.0), np.inf)[:, None])


def test_rarely_generated_class_is_filled_up_with_a_warning():
    x, y = make_companies()
    synthesizer = make_small_synthesizer(per_class=False, informed=True).fit(x, y)
    part = synthesizer.model_.parts[0]
    start = part.transform.layout.starts[-1]
    part.generator.output[1][start] = -1e9  # never the first class

    with pytest.warns(UserWarning, match="follows the condition of class 'failed' in 0 of"):
        synthetic, labels = synthesizer.sample(6, "failed")

    assert (len(synthetic), set(labels)) == (6, {"failed"})


def test_missing_torch_error_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    training = "fedneighbors.methods.fedpnn.synthesis._training"
    monkeypatch.delitem(sys.modules, training, raising=False)

    with pytest.raises(MissingExtraError, match=r"pip install 'fedneighbors\[torch\]'"):
        make_small_synthesizer().fit(np.random.default_rng(0).normal(size=(20, 1)))


def test_only_training_imports_torch(tmp_path):
    x, y = make_companies(40)
    make_small_synthesizer().fit(x, y).save(tmp_path / "m")
    script = (
        "import sys, fedneighbors\n"
        "from fedneighbors.methods.fedpnn.synthesis import *\n"
        f"TabularSynthesizer.load({str(tmp_path / 'm')!r}).sample(3)\n"
        "print('torch' in sys.modules)"
    )

    result = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )

    assert result.stdout.strip() == "False"


def test_training_makes_generators_follow_conditions():
    rng = np.random.default_rng(5)
    table = pd.DataFrame({"w": rng.choice(["a", "b", "c", "d"], 300, p=[0.7, 0.1, 0.1, 0.1])})
    options = {"generator": (32,), "critic": (32,), "learning_rate": 5e-3, "batch_size": 100}

    def share_followed(epochs):
        part = make_small_synthesizer(**options, epochs=epochs).fit(table).model_.parts[0]
        rng = np.random.default_rng(0)
        conditions = [Picks(np.array([0]), np.array([code])) for code in range(4)]
        columns = [part.table(200, rng, fixed=condition).columns["w"] for condition in conditions]
        return np.mean(
            [(column == category).mean() for column, category in zip(columns, "abcd", strict=True)]
        )

    assert share_followed(1) < 0.5
    assert share_followed(60) > 0.8


def test_informed_start_has_the_frequencies_of_the_rows():
    rng = np.random.default_rng(6)
    table = pd.DataFrame({"w": rng.choice(["often", "rare"], 300, p=[0.9, 0.1])})
    share = (table["w"] == "rare").mean()

    shares = {
        informed: (
            make_small_synthesizer(informed=informed, epochs=1).fit(table).sample(1_000)["w"]
            == "rare"
        ).mean()
        for informed in (True, False)
    }

    assert abs(shares[True] - share) < 0.05
    assert abs(shares[False] - share) > 0.1


def test_correlations_are_learned():
    rng = np.random.default_rng(7)
    x = rng.normal(size=(600, 1)) + 0.2 * rng.normal(size=(600, 2))
    options = {"dropout": 0.0, "pac": 1, "learning_rate": 2e-3, "max_modes": 2, "batch_size": 200}

    synthesizer = make_small_synthesizer(
        **{**options, "generator": (64,), "critic": (64,), "epochs": 250}
    ).fit(x)

    # 0.62 to 0.85 over five seeds; the real rows have 0.96
    assert np.corrcoef(synthesizer.sample(600).T)[0, 1] > 0.4


def test_longer_training_improves_the_distribution():
    rng = np.random.default_rng(4)
    x = np.concatenate([rng.normal(-5, 1, (300, 1)), rng.normal(5, 1, (100, 1))])
    options = {"generator": (32,), "critic": (32,), "learning_rate": 2e-3, "informed": False}

    def score(epochs):
        runs = [
            make_small_synthesizer(**options, epochs=epochs, random_state=seed).fit(x)
            for seed in range(3)
        ]
        return np.mean([ks_complement(x, run.sample(400))["x0"] for run in runs])

    assert score(40) > score(1) + 0.03  # 0.80 and 0.70
