import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import log_loss

from fedneighbors import FlyNNClassifier
from fedneighbors.errors import PrivacyError
from fedneighbors.methods.flynn.algorithm import (
    SHARPNESS_GRID,
    calibration_rows,
    choose_sharpness,
    compute_novelty,
    decay_table,
    hash_with_plan,
    leave_one_out,
    log_losses,
    probabilities,
)
from fedneighbors.privacy import Privacy


def table(n_rows, seed=0, n_classes=3):
    rng = np.random.default_rng(seed)
    y = rng.integers(0, n_classes, n_rows)
    y[:n_classes] = np.arange(n_classes)
    return rng.normal(size=(n_rows, 5)) + y[:, None], y


def classifier(**options):
    fixed = {"decay": None, "expand": "mirror", "class_normalized": True}
    return FlyNNClassifier(**{"n_units": 80, "n_inputs": 3, "n_active": 9, **fixed, **options})


def unscaled_classifier(**options):
    """Return a classifier whose plan does not depend on the data."""
    return classifier(standardize=False, **options)


@settings(max_examples=100)
@given(st.integers(0, 2**32 - 1), st.integers(1, 20), st.sampled_from(["none", "mirror"]))
def test_unlearning_the_last_rows_restores_the_counts(seed, n_more, expand):
    x, y = table(20 + n_more, seed)
    learner = classifier(expand=expand).partial_fit(x[:20], y[:20])
    before = learner.counts_.copy()

    learner.partial_fit(x[20:], y[20:]).unlearn(x[20:], y[20:])

    assert learner.counts_.dtype == before.dtype
    assert learner.counts_.tolist() == before.tolist()
    assert learner.model_.n_rows == 20


@settings(max_examples=100)
@given(st.integers(0, 2**32 - 1), st.sets(st.integers(0, 24), max_size=20))
def test_unlearning_equals_training_without_the_rows(seed, forgotten):
    x, y = table(25, seed)
    remaining = np.array([k for k in range(25) if k not in forgotten])
    reference = unscaled_classifier().partial_fit(x[remaining], y[remaining], classes=[0, 1, 2])
    removed = np.array(sorted(forgotten), int)

    learner = unscaled_classifier().fit(x, y)
    if forgotten:
        learner.unlearn(x[removed], y[removed])

    assert learner.counts_.tolist() == reference.counts_.tolist()
    assert learner.decay_ == reference.decay_
    assert (learner.decision_function(x) == reference.decision_function(x)).all()


@settings(max_examples=100)
@given(st.integers(0, 2**32 - 1), st.lists(st.integers(1, 29), max_size=4))
def test_partial_fit_in_batches_equals_one_call(seed, cuts):
    x, y = table(30, seed)
    pieces = np.split(np.arange(30), sorted(cuts))

    learner = unscaled_classifier()
    for piece in pieces:
        if len(piece):
            learner.partial_fit(x[piece], y[piece], classes=[0, 1, 2])

    assert learner.counts_.tolist() == unscaled_classifier().fit(x, y).counts_.tolist()


@settings(max_examples=100)
@given(st.integers(0, 2**32 - 1), st.permutations(range(3)))
def test_merging_equals_training_on_the_union(seed, order):
    x, y = table(45, seed)
    parts = [slice(0, 15), slice(15, 30), slice(30, 45)]
    models = [unscaled_classifier().partial_fit(x[p], y[p]) for p in parts]

    merged = models[order[0]].merge(models[order[1]]).merge(models[order[2]])

    union = unscaled_classifier().fit(x, y)
    assert merged.counts_.tolist() == union.counts_.tolist()
    assert merged.classes_.tolist() == union.classes_.tolist()
    assert merged.decay_ == union.decay_
    assert (merged.predict(x) == union.predict(x)).all()


def test_merging_adds_classes_that_only_one_model_has():
    x, y = table(60)
    names = np.array(["b", "longer", "a"])[y]
    first, second = names != "longer", names != "b"

    merged = (
        unscaled_classifier()
        .fit(x[first], names[first])
        .merge(unscaled_classifier().fit(x[second], names[second]))
    )

    assert merged.classes_.tolist() == ["a", "b", "longer"]
    assert merged.counts_.sum(axis=1).tolist() == [
        9 * 2 * (names == "a").sum(),
        9 * (names == "b").sum(),
        9 * (names == "longer").sum(),
    ]
    assert set(merged.predict(x)) == {"a", "b", "longer"}


@pytest.mark.parametrize(
    "change",
    [
        {"n_units": 81},
        {"n_inputs": 2},
        {"n_active": 8},
        {"random_state": 1},
        {"expand": None},
        {"standardize": "feature"},
    ],
    ids=str,
)
def test_merging_refuses_a_model_that_hashes_in_another_way(change):
    x, y = table(30)
    first = unscaled_classifier().fit(x, y)
    before = first.model_.to_bytes()
    second = classifier(**{"standardize": False, **change}).fit(x, y)

    with pytest.raises(ValueError, match="expected models with the same sizes, seed"):
        first.merge(second)

    assert first.model_.to_bytes() == before


def test_merging_refuses_constants_of_another_table():
    x, y = table(30)

    with pytest.raises(ValueError, match="standardizing constants"):
        classifier().fit(x, y).merge(classifier().fit(x + 1e-9, y))


def test_merging_other_columns_or_label_types_raises():
    x, y = table(30)
    named, swapped = (
        unscaled_classifier().fit(x, y).name_features(list(names)) for names in ("abcde", "bacde")
    )

    with pytest.raises(ValueError, match="column names"):
        named.merge(swapped)
    with pytest.raises(
        ValueError, match=r"labels of one type in both models, got \['int', 'str'\]"
    ):
        unscaled_classifier().fit(x, y).merge(
            unscaled_classifier().fit(x, np.array(list("abc"))[y])
        )


def test_unlearning_an_unknown_label_changes_nothing():
    x, y = table(30)
    learner = classifier().fit(x, y)
    before = learner.model_.to_bytes()

    with pytest.raises(ValueError, match=r"unlearn got labels \[7\] that are not in classes_"):
        learner.unlearn(x[:2], [0, 7])

    assert learner.model_.to_bytes() == before


def test_unlearning_more_than_was_learned_changes_nothing():
    x, y = table(30)
    learner = classifier().fit(x, y)
    before = learner.model_.to_bytes()

    with pytest.raises(ValueError, match="Nothing was changed"):
        learner.unlearn(np.vstack([x, x[:1]]), np.append(y, y[0]))

    assert learner.model_.to_bytes() == before


def test_unlearning_all_rows_restores_empty_filters():
    x, y = table(30)

    learner = classifier().fit(x, y).unlearn(x, y)

    assert not learner.counts_.any()
    assert learner.predict(x).tolist() == [0] * 30


def test_the_first_call_may_declare_classes_without_rows():
    x, y = table(30)
    early = y < 2

    learner = unscaled_classifier().partial_fit(x[early], y[early], classes=[2, 1, 0])
    learner.partial_fit(x[~early], y[~early])

    assert learner.classes_.tolist() == [0, 1, 2]
    assert learner.counts_.tolist() == unscaled_classifier().fit(x, y).counts_.tolist()


def test_labels_outside_the_named_classes_are_refused():
    x, y = table(30)

    with pytest.raises(ValueError, match=r"labels \[2\] that are not among classes=\[0, 1\]"):
        classifier().partial_fit(x, y, classes=[0, 1])
    with pytest.raises(ValueError, match=r"partial_fit got labels \[9\]"):
        classifier().fit(x, y).partial_fit(x[:1], [9])


def test_later_rows_refine_the_calibration():
    x, y = table(60)
    learner = classifier().partial_fit(x[:30], y[:30])
    before = learner.model_.losses.copy()

    learner.partial_fit(x[30:], y[30:])

    assert (learner.model_.losses > before).all()


# Probabilities.


def test_probabilities_add_up_to_one_and_agree_with_predictions():
    x, y = table(200)
    learner = classifier().fit(x[:100], y[:100])

    likelihoods = learner.predict_proba(x)

    np.testing.assert_allclose(likelihoods.sum(axis=1), 1, rtol=1e-12)
    assert (likelihoods >= 0).all()
    assert (learner.classes_[likelihoods.argmax(axis=1)] == learner.predict(x)).all()


def test_calibration_beats_both_ends_of_the_grid_on_new_rows():
    x, y = table(2_000)
    learner = classifier(n_units=2_000, n_active=32).fit(x[:1_000], y[:1_000])
    scores = learner.model_.novelty(x[1_000:])

    calibrated, lowest, highest = (
        log_loss(y[1_000:], probabilities(scores, beta, 32))
        for beta in (learner.model_.sharpness, SHARPNESS_GRID[0], SHARPNESS_GRID[-1])
    )

    assert calibrated < 0.9 * lowest
    assert calibrated < 0.9 * highest


def test_leave_one_out_scores_equal_filters_without_the_row():
    x, y = table(30)
    model = classifier().fit(x, y).model_
    active = hash_with_plan(x, model.plan)

    scores = leave_one_out(active, y, model.filters, model.table)

    for k in range(30):
        counts = model.filters.copy()
        counts[active[k], y[k]] -= 1
        assert (compute_novelty(active[[k]], counts, model.table)[0] == scores[k]).all()


def test_losses_of_parts_add_up_to_those_of_the_whole():
    rng = np.random.default_rng(0)
    scores, labels = 9 * rng.random((50, 3)), rng.integers(0, 3, 50)

    parts = [log_losses(scores[rows], labels[rows], 9) for rows in np.split(np.arange(50), [7, 31])]

    assert sum(parts).tolist() == log_losses(scores, labels, 9).tolist()
    assert log_losses(scores[:0], labels[:0], 9).tolist() == [0] * len(SHARPNESS_GRID)


def test_the_loss_of_one_row_is_capped():
    losses = log_losses(np.array([[0.0, 8.0]]), np.array([1]), 8)

    assert losses[-1] == 50 << 20


def test_the_lowest_sharpness_of_minimal_loss_is_chosen():
    losses = np.full(len(SHARPNESS_GRID), 9)
    losses[[3, 5]] = 4

    sharpness = choose_sharpness(losses)

    assert sharpness == SHARPNESS_GRID[3]


def test_calibration_rows_depend_on_hashes_only():
    rng = np.random.default_rng(0)
    active = np.sort(rng.integers(0, 10**5, (1_000, 16)).astype(np.int32), axis=1)
    order = rng.permutation(1_000)

    selected = calibration_rows(active, 200_000)

    assert (calibration_rows(active[order], 200_000) == selected[order]).all()
    assert calibration_rows(active, 20_000).all()
    assert 50 < selected.sum() < 150  # one in ten; outside with probability 1e-6


# Decisions.


def test_the_binary_decision_is_the_difference_of_novelties():
    x, y = table(60, n_classes=2)
    learner = classifier().fit(x, y)

    decision = learner.decision_function(x)

    scores = learner.model_.novelty(x)
    assert decision.tolist() == (scores[:, 0] - scores[:, 1]).tolist()
    assert ((decision > 0) == (learner.predict(x) == 1)).all()


def test_for_three_classes_the_decision_is_minus_the_novelty():
    x, y = table(60)
    learner = classifier().fit(x, y)

    decision = learner.decision_function(x)

    assert decision.tolist() == (-learner.model_.novelty(x)).tolist()
    assert (learner.classes_[decision.argmax(axis=1)] == learner.predict(x)).all()


def test_a_tie_goes_to_the_lower_class():
    x, y = np.array([[1, 0], [1, 0], [1, 0]]), np.array(["b", "c", "a"])

    learner = unscaled_classifier(n_inputs=1, decay=0.0).fit(x, y)

    assert set(map(tuple, learner.decision_function(x))) == {(0.0, 0.0, 0.0)}
    assert learner.predict(x).tolist() == ["a", "a", "a"]


def test_class_normalization_helps_a_rare_class():
    rng = np.random.default_rng(0)
    y = (rng.random(1_000) < 0.05).astype(int)
    x = rng.normal(size=(1_000, 5)) + 2 * y[:, None]

    normalized, plain = (
        classifier(n_units=1_000, n_active=50, decay=0.99, class_normalized=flag).fit(x, y)
        for flag in (True, False)
    )

    assert (normalized.predict(x)[y == 1] == 1).mean() > 0.8
    assert (plain.predict(x)[y == 1] == 1).mean() < 0.5


def test_a_decay_table_covers_a_class_without_rows():
    empty_table = decay_table(np.zeros(2, int), np.zeros(2, int), decay=0.5, class_normalized=True)

    assert empty_table.weights.tolist() == [1.0, 1.0]


# Weights.


@settings(max_examples=50)
@given(st.integers(0, 2**32 - 1), st.lists(st.integers(0, 3), min_size=24, max_size=24))
def test_whole_weights_repeat_rows_bit_for_bit(seed, weights):
    x, y = table(24, seed)
    weights[:3] = 1, 1, 1  # at least one row of each class
    repeated = np.repeat(np.arange(24), weights)
    choice = {"decay": "auto", "expand": "auto", "class_normalized": "auto"}
    learner = classifier(**choice)

    weighted = learner.fit(x, y, sample_weight=weights).model_.to_bytes()
    federated = learner.fit(x, y, np.arange(24) % 3, np.array(weights, float)).model_.to_bytes()

    expected = learner.fit(x[repeated], y[repeated]).model_.to_bytes()
    assert weighted == expected
    assert federated == expected


def test_weights_of_later_rows_repeat_them():
    x, y = table(30)
    weights = np.arange(15) % 3
    rows = 15 + np.repeat(np.arange(15), weights)
    weighted, repeated = (classifier().fit(x[:15], y[:15]) for _ in range(2))

    weighted.partial_fit(x[15:], y[15:], sample_weight=weights)

    assert weighted.model_.to_bytes() == repeated.partial_fit(x[rows], y[rows]).model_.to_bytes()
    weighted.unlearn(x[15:], y[15:], sample_weight=weights)
    assert weighted.counts_.tolist() == classifier().fit(x[:15], y[:15]).counts_.tolist()


@pytest.mark.parametrize(
    ("weights", "words"),
    [
        (np.full(30, 0.5), "whole numbers, got 0.5; rows are added as integer counts"),
        (np.full(30, -1), "whole numbers, got -1"),
        (np.full(30, np.nan), "sample_weight contains NaN"),
        (np.full(30, np.inf), "sample_weight contains infinity"),
        (np.ones(29), r"\(29,\), expected \(30,\)"),
        (np.zeros(30), "at least one non-zero number"),
    ],
    ids=["half", "negative", "nan", "infinite", "too few", "zero"],
)
def test_weights_that_are_no_repetitions_are_refused(weights, words):
    x, y = table(30)

    with pytest.raises(ValueError, match=words):
        classifier().fit(x, y, sample_weight=weights)


def test_weights_under_a_budget_are_refused():
    x, y = table(30)
    privacy = Privacy(epsilon=1, classes=(0, 1, 2), bounds=(-5, 5))

    with pytest.raises(PrivacyError, match="the noise is sized for rows that count once"):
        classifier(privacy=privacy).fit(x, y, sample_weight=np.ones(30))
