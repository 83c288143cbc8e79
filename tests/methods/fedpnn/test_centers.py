"""A party's replies describe no center, class or cells of fewer than min_count rows."""

import math
from dataclasses import fields

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose

from fedneighbors import FedPNNClassifier
from fedneighbors.errors import DataError
from fedneighbors.federation._inprocess import run
from fedneighbors.federation._messages import encode
from fedneighbors.methods.fedpnn._model import release_centers
from fedneighbors.methods.fedpnn._party import CentersReply, CentersRequest, FedPNNParty
from fedneighbors.methods.fedpnn._scaling import (
    PointMomentsRequest,
    ScalingReply,
    column_constants,
    make_scaling,
)
from fedneighbors.methods.fedpnn._selection import SelectionReply, class_sums
from fedneighbors.methods.fedpnn._suppression import (
    suppress_few_cells,
    suppress_few_indicators,
    suppress_few_pairs,
)
from fedneighbors.methods.fedpnn.algorithm import (
    CENTERS_PER_ROOT,
    choose_threshold,
    evolve_rows,
    merge_small,
)
from fedneighbors.methods.fedpnn.protocol import FedPNNSettings, coordinate
from fedneighbors.tabular._schema import PointMomentsReply, SchemaReply, class_moments


def merge_naively(centers, counts, min_count):
    """Merge centers one at a time over plain lists."""
    clusters = [(list(c), list(n)) for c, n in zip(centers.tolist(), counts.tolist(), strict=True)]
    while len(clusters) > 1:
        sizes = [sum(n) for _, n in clusters]
        small = sizes.index(min(sizes))
        if sizes[small] >= min_count:
            break
        label = [n.index(max(n)) for _, n in clusters]
        same_class = [j for j in range(len(clusters)) if j != small and label[j] == label[small]]
        candidates = same_class or [j for j in range(len(clusters)) if j != small]
        distances = [math.dist(clusters[j][0], clusters[small][0]) for j in candidates]
        target = candidates[distances.index(min(distances))]
        weight = sizes[small] / (sizes[small] + sizes[target])
        moved = [
            a + (b - a) * weight
            for a, b in zip(clusters[target][0], clusters[small][0], strict=True)
        ]
        added = [a + b for a, b in zip(clusters[target][1], clusters[small][1], strict=True)]
        clusters[target] = moved, added
        del clusters[small]
    return clusters


@given(st.integers(0, 10_000), st.integers(1, 12), st.integers(1, 9))
def test_merge_small_matches_a_plain_loop(seed, n, min_count):
    rng = np.random.default_rng(seed)
    centers = rng.integers(-9, 10, (n, 2)) + rng.random((n, 2))
    counts = rng.integers(0, 4, (n, 3))
    counts[np.arange(n), rng.integers(0, 3, n)] += 1

    new_centers, new_counts, targets = merge_small(centers, counts, min_count=min_count)

    expected = merge_naively(centers, counts, min_count)
    assert new_counts.tolist() == [n for _, n in expected]
    np.testing.assert_allclose(new_centers, [c for c, _ in expected], rtol=1e-12)
    assert (new_counts.sum(axis=1) >= min_count).all() or len(new_counts) == 1
    sums = [counts[targets == j].sum(axis=0).tolist() for j in range(len(new_centers))]
    assert sums == new_counts.tolist()


def test_merge_small_does_not_modify_its_input():
    centers, counts = np.arange(6.0).reshape(3, 2), np.ones((3, 1), np.int64)

    merge_small(centers, counts, min_count=2)

    assert centers.tolist() == [[0, 1], [2, 3], [4, 5]]
    assert counts.tolist() == [[1], [1], [1]]


@pytest.mark.parametrize("n", [1, 2, 40, 300])
def test_choose_threshold_is_the_smallest_with_few_centers(n):
    points = np.random.default_rng(n).normal(size=(n, 3))
    max_centers = CENTERS_PER_ROOT * math.sqrt(n)

    threshold = choose_threshold(points, factor=2.0)

    def n_centers(threshold):
        labels = np.zeros(n, np.int64)
        return len(evolve_rows(points, labels, 1, threshold=threshold, factor=2.0).centers)

    assert n_centers(threshold) <= max_centers
    assert n <= max_centers or n_centers(threshold * 0.8) > max_centers


def test_identical_rows_give_one_center():
    result = release_centers(
        np.ones((9, 2)), np.zeros(9, np.int64), 1,
        threshold=None, factor=2.0, classwise=True, min_count=5,
    )  # fmt: skip

    assert result.centers.tolist() == [[1, 1]]
    assert result.counts.tolist() == [[9]]


@pytest.mark.parametrize("classwise", [True, False])
def test_all_rows_of_large_classes_are_counted(classwise):
    rng = np.random.default_rng(5)
    labels = np.repeat([0, 1, 2], [30, 3, 20])

    result = release_centers(
        rng.normal(size=(53, 2)), labels, 4,
        threshold=0.3, factor=2.0, classwise=classwise, min_count=5,
    )  # fmt: skip

    assert result.counts.sum() == 50
    assert not result.counts[:, [1, 3]].any()
    assert result.suppressed.tolist() == [False, True, False, True]
    if classwise:
        assert result.counts.sum(axis=0).tolist() == [30, 0, 20, 0]
        assert ((result.counts > 0).sum(axis=1) == 1).all()


def test_exposure_counts_single_rows():
    points = np.array([[0.0], [0.01], [0.02], [5.0], [9.0], [9.01]])
    labels = np.array([0, 0, 0, 0, 1, 1])
    options = {"threshold": 0.1, "factor": 2.0, "classwise": True}

    merged = release_centers(points, labels, 2, min_count=3, **options).exposure
    plain = release_centers(points, labels, 2, min_count=1, **options).exposure

    assert (merged.n_clusters, merged.n_single, merged.n_small) == (2, 1, 1)
    assert (merged.n_centers, merged.min_center_size, merged.n_withheld) == (1, 4, 2)
    assert merged.largest_risk == 0.25
    assert (plain.n_clusters, plain.n_single, plain.n_centers, plain.min_center_size) == (
        3,
        1,
        3,
        1,
    )
    assert "centers of 4 rows or more" in str(merged)
    assert "2 rows of rare classes are withheld" in str(merged)


def test_exposure_of_an_empty_release():
    empty = release_centers(
        np.zeros((3, 1)), np.zeros(3, np.int64), 1,
        threshold=None, factor=2.0, classwise=True, min_count=5,
    ).exposure  # fmt: skip

    assert (empty.n_centers, empty.min_center_size, empty.largest_risk, empty.n_withheld) == (
        0,
        0,
        0.0,
        3,
    )
    assert str(empty).startswith("Nothing is sent")


def test_centers_are_means_of_records_or_evolved_centers():
    rng = np.random.default_rng(3)
    points, labels = rng.normal(size=(40, 2)), np.zeros(40, np.int64)
    options = {"threshold": 0.5, "factor": 2.0, "classwise": True, "min_count": 1}

    means = release_centers(points, labels, 1, **options)
    evolved = release_centers(points, labels, 1, means=False, **options)

    clusters = evolve_rows(points, labels, 1, threshold=0.5, factor=2.0)
    assert evolved.centers.tolist() == clusters.centers.tolist()
    expected = [points[clusters.rows == j].mean(axis=0) for j in range(len(clusters.centers))]
    np.testing.assert_allclose(means.centers, expected, rtol=1e-12)
    assert means.counts.tolist() == evolved.counts.tolist() == clusters.counts.tolist()


def test_counts_do_not_disclose_few_records_of_a_class():
    rng = np.random.default_rng(4)
    labels = np.repeat([0, 1], [40, 6])

    result = release_centers(
        rng.normal(size=(46, 2)), labels, 2,
        threshold=0.6, factor=2.0, classwise=False, min_count=5,
    )  # fmt: skip

    assert ((result.counts == 0) | (result.counts >= 5)).all()
    assert result.counts.sum() == 46


QUANTUM = 1 << 16
SETTINGS = [
    {"n_features_to_select": 3},
    {"normalize": "minmax", "metric": None, "classwise": False},
    {"frame": "local", "metric": None, "n_features_to_select": 3},
]


class RecordingParty:
    """Party that records its requests and replies."""

    def __init__(self, party):
        self.name, self.accepts = party.name, party.accepts
        self._party, self.requests, self.replies = party, [], []

    def answer(self, request):
        self.requests.append(request)
        self.replies.append(self._party.answer(request))
        return self.replies[-1]

    def find_reply(self, kind):
        (reply,) = (reply for reply in self.replies if isinstance(reply, kind))
        return reply


def make_common_party(seed=0):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(80, 4))
    x[rng.random(x.shape) < 0.3] = np.nan
    return FedPNNParty("common", x, np.arange(80) % 2, min_count=2)


@settings(max_examples=40, deadline=None)
@given(
    st.integers(0, 10_000),
    st.sampled_from(SETTINGS),
    st.integers(2, 8),
    st.lists(st.integers(1, 12), min_size=1, max_size=4),
)
def test_rows_of_rare_classes_do_not_change_any_reply(seed, options, min_count, sizes):
    rng = np.random.default_rng(seed)
    y = rng.permutation(np.repeat(np.arange(len(sizes)), sizes))
    x = rng.normal(size=(len(y), 4)) + y[:, None]
    x[rng.random(x.shape) < 0.2] = np.nan
    frequent = (np.bincount(y) >= min_count)[y]
    with_rare = RecordingParty(FedPNNParty("rare", x, y, min_count=2))
    without_rare = FedPNNParty("rare", x[frequent], y[frequent], min_count=2)

    model = run(
        coordinate(FedPNNSettings(**options, min_count=min_count)), [with_rare, make_common_party()]
    ).result

    announced = np.unique(np.append(y[frequent], [0, 1])).tolist()
    assert list(model.classes) == announced
    assert with_rare.find_reply(SchemaReply).labels == tuple(np.unique(y[frequent]).tolist())
    for request, reply in zip(with_rare.requests, with_rare.replies, strict=True):
        assert encode(without_rare.answer(request)) == encode(reply)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10_000), st.integers(2, 7), st.floats(0.0, 1.0), st.integers(1, 3))
def test_replies_do_not_disclose_few_missing_or_present_cells(
    seed, min_count, missing_rate, n_classes
):
    rng = np.random.default_rng(seed)
    y = rng.integers(0, n_classes, 60)
    x = rng.normal(size=(60, 4)) * 9
    x[rng.random(x.shape) < missing_rate * rng.random(4)] = np.nan
    party = RecordingParty(FedPNNParty("other", x, y, min_count=min_count))

    config = FedPNNSettings(n_features_to_select=3, min_count=min_count)
    model = run(coordinate(config), [party, make_common_party(seed)]).result

    scaling, n = model.scaling, model.scaling.n_features
    n_rows = np.bincount(y, minlength=len(model.classes))
    n_rows[n_rows < min_count] = 0

    def has_no_small_counts(counts):
        return ((counts == 0) | (counts >= min_count)).all()

    n_missing = np.array([np.isnan(x[y == k]).sum(axis=0) for k in range(len(n_rows))])
    n_known = np.array([(~np.isnan(x[y == k])).sum(axis=0) for k in range(len(n_rows))])
    n_disclosed = np.where(n_missing < min_count, 0, n_missing)
    n_missing = np.where(n_known < min_count, n_rows[:, None], n_disclosed * (n_rows > 0)[:, None])
    selected = slice(None) if model.selection is None else model.selection.columns

    sums, constants, moments = map(
        party.find_reply, (SelectionReply, ScalingReply, PointMomentsReply)
    )
    assert has_no_small_counts(sums.counts)
    assert has_no_small_counts(n_rows[:, None] - sums.counts)
    assert has_no_small_counts(constants.sizes)
    # the moments disclose these numbers too
    assert constants.n_missing.tolist() == n_missing.sum(axis=0)[selected].tolist()
    indicator_sums = moments.sums[:, n:] / QUANTUM
    assert has_no_small_counts(indicator_sums)
    assert has_no_small_counts(n_rows[:, None] - indicator_sums)
    joint = moments.products[n:, n:] / QUANTUM**2
    assert has_no_small_counts(joint)
    off_diagonal = ~np.eye(len(joint), dtype=bool)
    assert (joint[off_diagonal] % min_count == 0).all()
    assert has_no_small_counts(party.find_reply(CentersReply).counts)
    assert len(scaling.indicators) + (len(scaling.pooled) > 0) == len(joint)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10_000), st.integers(2, 7), st.floats(0.0, 1.0))
def test_few_cells_of_a_class_do_not_change_moments(seed, min_count, missing_rate):
    rng = np.random.default_rng(seed)
    y = np.repeat([0, 1], [12, 30])
    x = rng.normal(size=(42, 3))
    x[rng.random(x.shape) < 0.1 + 0.8 * missing_rate] = np.nan
    for label in (0, 1):
        known_rows = np.flatnonzero(y == label)[: rng.integers(0, min_count)]
        x[y == label, 0] = np.nan
        x[known_rows, 0] = rng.normal(size=len(known_rows))
    without_cells = x.copy()
    without_cells[:, 0] = np.nan
    constants = column_constants(rng.normal(size=(50, 3)), n_knots=9, min_count=1)
    scaling = make_scaling("quantile", [constants], min_count=min_count)

    replies = [
        FedPNNParty("p", table, y, min_count=2).answer(
            PointMomentsRequest(scaling, (0, 1), min_count)
        )
        for table in (x, without_cells)
    ]

    assert replies[0] == replies[1]


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 10_000), st.integers(1, 6))
def test_products_use_pairs_known_for_enough_rows(seed, min_count):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(20, 3)) * 2
    x[rng.random(x.shape) < rng.random(3)] = np.nan
    constants = column_constants(rng.normal(size=(50, 3)), n_knots=9, min_count=1)
    scaling = make_scaling("quantile", [constants], min_count=1)
    scaling = type(scaling)(
        scaling.kind, scaling.values, scaling.ranks, scaling.fill, np.array([0, 2]), scaling.pooled
    )
    points, base = scaling.apply(x), scaling.empty_point()
    informative = np.hstack([~np.isnan(x), points[:, 3:] > 0])
    moments = class_moments(points, np.zeros(20, np.int64), 1)

    result = suppress_few_pairs(
        moments, points, base, informative, n_columns=3, min_count=min_count
    )

    point_steps = np.rint(points * QUANTUM).astype(np.int64)
    base_steps = np.rint(base * QUANTUM).astype(np.int64)
    for a in range(5):
        for b in range(5):
            known_pairs = informative[:, a] & informative[:, b]
            product = sum(
                int(u) * int(v) - (0 if known_pairs.sum() >= min_count else int(u - p) * int(v - q))
                for u, v, p, q in zip(
                    point_steps[:, a],
                    point_steps[:, b],
                    [base_steps[a]] * 20,
                    [base_steps[b]] * 20,
                    strict=True,
                )
            )
            if a >= 3 and b >= 3 and a != b:
                n = int(known_pairs.sum()) if known_pairs.sum() >= min_count else 0
                product = min_count * round(n / min_count) * QUANTUM**2
            if a == b and a >= 3:
                product = int(known_pairs.sum()) * QUANTUM**2
            assert result.products[a, b] == product
    assert (result.sums == moments.sums).all()


def test_centers_do_not_disclose_cells_of_few_records():
    rng = np.random.default_rng(2)
    group = np.arange(40) % 5
    x = np.column_stack([10.0 * group + rng.normal(size=40), np.full(40, np.nan)])
    x[:5, 1] = rng.normal(size=5)  # one cell in each group, which are enough in the class
    y = np.zeros(40, np.int64)
    scaling = make_scaling("none", [column_constants(x, n_knots=5, min_count=1)], min_count=1)
    request = CentersRequest(
        scaling, "none", 5, np.zeros((0, 0)), (0,), 1.0, 2.0, True, 5, "gaussian", True
    )

    reply = FedPNNParty("p", x, y).answer(request)

    assert reply.counts[:, 0].tolist() == [8] * 5
    assert reply.centers[:, 1].tolist() == [scaling.fill[1]] * 5
    assert reply.centers[:, 2].tolist() == [1.0] * 5  # disclosed as missing in all of them


@given(st.integers(0, 10_000), st.integers(1, 6), st.floats(0, 0.5), st.integers(6, 30))
def test_selection_sums_are_multiples_of_class_sums(seed, min_count, missing_rate, n_rows):
    rng = np.random.default_rng(seed)
    x = np.where(rng.random((n_rows, 5)) < missing_rate, np.nan, 1.0 + rng.random((n_rows, 5)))
    labels = np.zeros(n_rows, np.int64)
    cells = suppress_few_cells(x, labels, min_count=min_count)

    sums = class_sums(x, labels, 1, min_count=min_count)

    for column in range(5):
        values = cells[~np.isnan(cells[:, column]), column]
        n_missing = n_rows - len(values)
        assert sums.counts[0, column] == (n_rows if n_missing < min_count else len(values))
        total = sum(limb << 32 * k for k, limb in enumerate(sums.sums[0, column].tolist())) / 2**200
        expected = values.sum() * sums.counts[0, column] / max(len(values), 1)
        assert_allclose(total, expected, rtol=1e-12, atol=0)


@given(st.integers(0, 10_000), st.integers(1, 6), st.floats(0, 1))
def test_few_cells_and_indicators_are_suppressed_by_class(seed, min_count, missing_rate):
    rng = np.random.default_rng(seed)
    labels = np.repeat([0, 2], [min_count, 15])
    missing = rng.random((len(labels), 4)) < missing_rate
    x = np.where(missing, np.nan, 1.0)

    cells = suppress_few_cells(x, labels, min_count=min_count)
    indicators = suppress_few_indicators(missing.astype(float), labels, min_count=min_count)

    for label in (0, 2):
        for column in range(4):
            class_missing = missing[labels == label, column]
            few_known = (~class_missing).sum() < min_count
            few_missing = class_missing.sum() < min_count
            suppressed = np.isnan(cells[labels == label, column])
            assert suppressed.tolist() == (class_missing | few_known).tolist()
            expected = (
                np.zeros(len(class_missing))
                if few_missing
                else np.ones(len(class_missing))
                if few_known
                else class_missing
            )
            assert indicators[labels == label, column].tolist() == expected.tolist()


def test_complete_tables_and_min_count_1_suppress_nothing():
    rng = np.random.default_rng(3)
    x = rng.normal(size=(30, 4))
    labels = np.repeat([0, 1], 15)
    incomplete = np.where(rng.random(x.shape) < 0.3, np.nan, x)

    assert (suppress_few_cells(x, labels, min_count=9) == x).all()
    assert np.array_equal(
        suppress_few_cells(incomplete, labels, min_count=1), incomplete, equal_nan=True
    )
    assert class_sums(x, labels, 2, min_count=9) == class_sums(x, labels, 2, min_count=1)
    counts = class_sums(incomplete, labels, 2, min_count=1).counts
    assert counts.sum(axis=0).tolist() == (~np.isnan(incomplete)).sum(axis=0).tolist()


def test_class_rare_at_every_party_is_omitted_with_a_warning():
    rng = np.random.default_rng(4)
    y = np.array(["common", "other"] * 20 + ["rare"] * 8)
    owner = np.arange(48) % 2
    x = rng.normal(size=(48, 3)) + (y == "other")[:, None] * 3

    with pytest.warns(UserWarning, match=r"no party has min_count=5 rows of classes \['rare'\]"):
        model = FedPNNClassifier().fit(x, y, parties=owner)
    with_rare = FedPNNClassifier(classes=["common", "other", "rare"]).fit(x, y, parties=owner)

    assert model.classes_.tolist() == ["common", "other"]
    assert with_rare.classes_.tolist() == ["common", "other", "rare"]
    assert not with_rare.predict_proba(x)[:, 2].any()
    assert (model.centers_ == with_rare.centers_).all()
    assert [exposure.n_withheld for exposure in model.exposures_.values()] == [4, 4]
    assert [exposure.n_rows for exposure in model.exposures_.values()] == [24, 24]
    with pytest.raises(ValueError, match="list all"):
        FedPNNClassifier(classes=["common", "other"]).fit(x, y, parties=owner)


def test_single_class_with_enough_rows_raises_with_advice():
    y = np.repeat([0, 1], [20, 4])

    with pytest.raises(DataError, match="got one class 0; add rows of another class, or lower"):
        FedPNNClassifier().fit(np.arange(24.0)[:, None], y)


def test_this_file_covers_every_reply_of_the_protocol():
    sent = {request.reply.__name__ for request in FedPNNParty.accepts}

    assert sent == {
        "SchemaReply", "SelectionReply", "ScalingReply", "PointMomentsReply", "CentersReply",
        "Receipt",
    }  # fmt: skip
    assert [field.name for field in fields(SchemaReply)] == [
        "feature_names", "kinds", "label_name", "label_kind", "labels",
    ]  # fmt: skip
