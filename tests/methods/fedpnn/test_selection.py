"""Column selection: t-statistics over parties are bit-identical to those of pooled rows."""

from dataclasses import fields

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.stats import ttest_ind
from sklearn.base import clone
from sklearn.datasets import load_wine

from fedneighbors import FedPNNClassifier
from fedneighbors.errors import DataError, PartyRefused, ProtocolError
from fedneighbors.federation._inprocess import run
from fedneighbors.methods.fedpnn._model import FedPNNModel
from fedneighbors.methods.fedpnn._party import FedPNNParty
from fedneighbors.methods.fedpnn._selection import (
    SelectionReply,
    SelectionRequest,
    class_sums,
    select_columns,
    welch_statistics,
)
from fedneighbors.methods.fedpnn.protocol import FedPNNSettings, coordinate
from tests.naive import selection as naive
from tests.seeds import cases

X, Y = load_wine(return_X_y=True)
OWNERS = np.arange(len(Y)) % 3


def add_up(parts):
    """Add up the sums of parties."""
    names = [field.name for field in fields(SelectionReply)]
    return SelectionReply(*(sum(getattr(part, name) for part in parts) for name in names))


def sum_parties(x, y, owner, n_classes, min_count=1):
    parts = [
        class_sums(x[owner == k], y[owner == k], n_classes, min_count=min_count)
        for k in np.unique(owner)
    ]
    return add_up(parts)


CELLS = st.one_of(
    st.integers(-3, 3).map(float),
    st.floats(-1e6, 1e6),
    st.sampled_from([np.nan, 0.1, -0.1, 1e30, -1e30, 1e-30]),
)


@settings(max_examples=cases(300), deadline=None)
@given(st.data(), st.integers(2, 12), st.integers(1, 4), st.integers(2, 4))
def test_statistics_over_parties_match_exact_pooled_ones(data, n, n_features, n_classes):
    x = data.draw(arrays(np.float64, (n, n_features), elements=CELLS))
    y = data.draw(arrays(np.int64, n, elements=st.integers(0, n_classes - 1)))
    owner = data.draw(arrays(np.int64, n, elements=st.integers(0, 2)))

    statistics = welch_statistics(sum_parties(x, y, owner, n_classes))

    truncated = np.where(np.isnan(x), np.nan, np.trunc(np.ldexp(x, 200)) * 2.0**-200)
    expected = naive.statistics(truncated.tolist(), y.tolist())
    assert [None if np.isnan(t) else t for t in statistics.tolist()] == expected
    for k in range(n_features + 1):
        assert select_columns(statistics, k).columns.tolist() == naive.select_columns(expected, k)


@given(st.integers(0, 10_000), st.integers(2, 4), st.integers(1, 6))
def test_sums_of_complete_tables_do_not_depend_on_owners(seed, n_parties, min_count):
    rng = np.random.default_rng(seed)
    y, owner = np.repeat(np.arange(3), 40), rng.integers(0, n_parties, 120)
    x = rng.normal(size=(120, 5)) * 10.0 ** rng.integers(-9, 9, 5)
    n_rows = np.array([np.bincount(y[owner == k], minlength=3) for k in range(n_parties)])
    disclosed = (n_rows >= min_count)[owner, y]

    federated = sum_parties(x[disclosed], y[disclosed], owner[disclosed], 3, min_count)
    pooled = class_sums(x[disclosed], y[disclosed], 3, min_count=min_count)

    for field in fields(SelectionReply):
        assert (getattr(federated, field.name) == getattr(pooled, field.name)).all()


def test_statistics_match_scipy():
    statistics = welch_statistics(class_sums(X, Y, 3, min_count=1))

    by_class = [
        np.abs(ttest_ind(X[k == Y], X[k != Y], equal_var=False).statistic) for k in range(3)
    ]
    np.testing.assert_allclose(statistics, np.max(by_class, axis=0), rtol=1e-12)


def test_perfect_columns_come_first_and_constant_ones_last():
    y = np.repeat([0, 1], 6)
    noise = np.tile([-1.0, 0.0, 1.0], 4)
    x = np.column_stack([np.full(12, 3.0), noise, noise + y, 5.0 * y, np.full(12, np.nan)])

    statistics = welch_statistics(class_sums(x, y, 2, min_count=5))

    assert np.isnan(statistics[[0, 4]]).all()
    assert statistics[1] == 0 < statistics[2] < statistics[3] == np.inf
    assert [select_columns(statistics, n).columns.tolist() for n in range(1, 6)] == [
        [3], [2, 3], [1, 2, 3], [0, 1, 2, 3], [0, 1, 2, 3, 4],
    ]  # fmt: skip


def test_ties_go_to_the_lower_column():
    x = X[:, [3, 0, 3, 0, 3]]

    selection = select_columns(welch_statistics(class_sums(x, Y, 3, min_count=1)), 3)

    assert selection.columns.tolist() == [0, 1, 3]
    assert selection.n_features == 5


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10_000), st.integers(1, 6), st.floats(0, 1))
def test_sums_cover_and_omit_no_or_many_cells_of_a_class(seed, min_count, share):
    rng = np.random.default_rng(seed)
    y = np.repeat([0, 1], [min_count + 3, 20])
    x = np.where(rng.random((len(y), 8)) < share, np.nan, rng.normal(size=(len(y), 8)))

    sums = class_sums(x, y, 2, min_count=min_count)

    n_omitted = np.bincount(y)[:, None] - sums.counts
    assert ((sums.counts == 0) | (sums.counts >= min_count)).all()
    assert ((n_omitted == 0) | (n_omitted >= min_count)).all()
    assert not sums.sums[sums.counts == 0].any()
    assert not sums.squares[sums.counts == 0].any()


@pytest.mark.parametrize("classifier", [FedPNNClassifier(), FedPNNClassifier.paper(0.2, 0.2)])
def test_selection_equals_training_on_the_selected_columns(classifier):
    noise = np.random.default_rng(0).normal(size=(len(Y), 40))
    x = np.hstack([noise[:, :20], X, noise[:, 20:]])
    classifier.set_params(share=None, holdout=0.0)
    selecting = clone(classifier).set_params(n_features_to_select=6)

    model = selecting.fit(x, Y, parties=OWNERS)
    columns = np.flatnonzero(model.support_)
    reference = clone(classifier).fit(x[:, columns], Y, parties=OWNERS)

    assert columns.min() >= 20
    assert columns.max() < 20 + X.shape[1]
    assert model.t_statistics_.shape == (6,)
    assert (model.centers_ == reference.centers_).all()
    assert (model.predict_proba(x) == reference.predict_proba(x[:, columns])).all()


def test_selected_columns_do_not_depend_on_owners():
    pooled, federated = (
        FedPNNClassifier(n_features_to_select=5).fit(X, Y, parties=owners)
        for owners in (None, OWNERS)
    )

    assert (pooled.support_ == federated.support_).all()
    assert pooled.t_statistics_.tolist() == federated.t_statistics_.tolist()
    assert [r.request for r in federated.run_record_.rounds][:2] == [
        "FedPNNSchemaRequest",
        "SelectionRequest",
    ]
    assert federated.run_record_.rounds[1].reduce == "sum"


def test_keeping_all_columns_needs_no_round():
    model = FedPNNClassifier(n_features_to_select=X.shape[1]).fit(X, Y)

    assert model.support_.all()
    assert "SelectionRequest" not in [r.request for r in model.run_record_.rounds]
    assert not hasattr(model, "t_statistics_")


def test_more_columns_than_there_are_cannot_be_selected():
    with pytest.raises(DataError, match=r"at most 13, the number of columns .* got 14; choose"):
        FedPNNClassifier(n_features_to_select=X.shape[1] + 1).fit(X, Y, parties=OWNERS)


def test_saved_model_keeps_its_columns_and_checks_names(tmp_path):
    frame = pd.DataFrame(X, columns=[f"column {j}" for j in range(X.shape[1])])
    model = FedPNNClassifier(n_features_to_select=4).fit(frame, Y, parties=OWNERS)
    model.save(tmp_path / "model")

    loaded = FedPNNClassifier.load(tmp_path / "model")

    assert (loaded.support_ == model.support_).all()
    assert loaded.t_statistics_.tolist() == model.t_statistics_.tolist()
    assert loaded.model_.to_bytes() == model.model_.to_bytes()
    assert (loaded.predict_proba(frame) == model.predict_proba(frame)).all()
    with pytest.raises(ValueError, match="feature names should match"):
        loaded.predict(frame[frame.columns[model.support_]])
    with pytest.raises(ValueError, match="expecting 13 features"):
        loaded.predict(X[:, model.support_])


def test_predictions_ignore_columns_that_were_not_selected():
    model = FedPNNClassifier(n_features_to_select=4).fit(X, Y)
    other = np.where(model.support_, X, np.nan)

    assert (model.predict_proba(other) == model.predict_proba(X)).all()


@pytest.mark.parametrize("n", [0, -3, 2.5, True, "many"])
def test_invalid_numbers_of_columns_are_rejected_at_fit(n):
    with pytest.raises(ValueError, match="n_features_to_select as an integer of 1 or more"):
        FedPNNClassifier(n_features_to_select=n).fit(X, Y)


class TamperingParty(FedPNNParty):
    change = staticmethod(lambda reply: reply)

    def _compute_sums(self, request):
        return self.change(super()._compute_sums(request))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda r: SelectionReply(r.counts[:, 1:], r.sums, r.squares), "of 3 classes and 13"),
        (lambda r: SelectionReply(r.counts, r.sums[:1], r.squares), "of 3 classes and 13"),
        (lambda r: SelectionReply(-r.counts, r.sums, r.squares), "fewer than 5 cells"),
        (lambda r: SelectionReply(r.counts * 0 + 4, r.sums, r.squares), "fewer than 5 cells"),
        (lambda r: SelectionReply(r.counts + (1 << 60), r.sums, r.squares), "or more cells"),
    ],
)
def test_invalid_sums_name_the_party(change, words):
    member = TamperingParty("p1", X, Y)
    member.change = change

    with pytest.raises(ProtocolError, match=f"party 'p1': .*{words}"):
        run(coordinate(FedPNNSettings(n_features_to_select=3)), [FedPNNParty("p0", X, Y), member])


def test_impossible_sums_are_rejected():
    member = TamperingParty("p1", X, Y)
    member.change = lambda r: SelectionReply(r.counts, r.sums, -3 * r.squares)

    with pytest.raises(ProtocolError, match="contradict each other"):
        run(coordinate(FedPNNSettings(n_features_to_select=3)), [FedPNNParty("p0", X, Y), member])


def test_party_refuses_sums_of_another_number_of_columns():
    member = FedPNNParty("p0", X, Y)

    class ForwardingParty:
        def __init__(self):
            self.name, self.accepts = member.name, member.accepts

        def answer(self, request):
            if isinstance(request, SelectionRequest):
                request = SelectionRequest(request.classes, 99, request.min_count)
            return member.answer(request)

    with pytest.raises(PartyRefused, match="number of columns differs from the schema"):
        run(coordinate(FedPNNSettings(n_features_to_select=3)), [ForwardingParty()])


def test_columns_are_selected_before_products_are_computed():
    rng = np.random.default_rng(1)
    y = np.repeat([0, 1], [40, 20])
    x = rng.normal(size=(60, 10_936))
    informative = np.arange(0, 10_936, 1000)
    x[:, informative] += 4.0 * y[:, None]

    model = FedPNNClassifier(n_features_to_select=30).fit(x, y, parties=np.arange(60) % 2)

    rounds = {r.request: r for r in model.run_record_.rounds}
    assert model.support_[informative].all()
    assert model.score(x, y) > 0.95
    assert max(rounds["SelectionRequest"].upload_bytes.values()) < 320 * 2 * 10_936 + 1000
    assert max(rounds["PointMomentsRequest"].upload_bytes.values()) < 20_000
    assert FedPNNModel.from_bytes(model.model_.to_bytes()).n_features == 10_936


def test_metric_of_too_many_columns_raises_with_advice():
    x = np.tile(np.arange(12.0)[:, None], 5000)

    with pytest.raises(DataError, match=r"would take 200 MB from each party.*to_select"):
        FedPNNClassifier().fit(x, np.repeat([0, 1], 6))
