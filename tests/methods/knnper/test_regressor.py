"""``KNNPerRegressor``: the scikit-learn interface, clients and rows."""

import numpy as np
import pytest
from sklearn.datasets import load_diabetes
from sklearn.metrics import r2_score
from sklearn.utils.estimator_checks import parametrize_with_checks
from torch import nn

from fedneighbors.errors import DataError, ModelFileError, RebuildNeeded
from fedneighbors.methods.knnper import KNNPerClassifier, KNNPerRegressor
from fedneighbors.methods.knnper._task import REGRESSION
from tests.methods.knnper.tampering import interrupt_second_write

X, Y = load_diabetes(return_X_y=True)
X, Y = X[:160], Y[:160]
PARTIES = np.where(np.arange(len(Y)) % 3 == 0, "south", "north")
TWO_OUTPUTS = np.column_stack([Y, X[:, 2] * 1e-3])  # two outputs with very different units

QUICK = {"hidden": (16, 8), "n_rounds": 3}

# scikit-learn checks that cannot pass, each with its reason.
EXPECTED_FAILURES = {}


@parametrize_with_checks(
    [KNNPerRegressor(hidden=(16,), n_rounds=5, learning_rate=0.1)],
    expected_failed_checks=lambda _: EXPECTED_FAILURES,
)
def test_scikit_learn_accepts_the_estimator(estimator, check):
    check(estimator)


@pytest.fixture(scope="module", params=["paper", "pool"])
def fitted(request):
    return KNNPerRegressor(**QUICK, combine=request.param).fit(X, TWO_OUTPUTS, parties=PARTIES)


def test_predictions_have_the_shape_of_the_targets(fitted):
    flat = KNNPerRegressor(**QUICK).fit(X, Y, parties=PARTIES)
    column = KNNPerRegressor(**QUICK).fit(X, Y[:, None], parties=PARTIES)

    assert fitted.predict(X, PARTIES).shape == (160, 2)
    assert flat.predict(X, PARTIES).shape == (160,)
    assert column.predict(X, PARTIES)[:, 0].tolist() == flat.predict(X, PARTIES).tolist()


def test_the_score_is_the_share_of_explained_variance(fitted):
    score = fitted.score(X, TWO_OUTPUTS, parties=PARTIES)

    assert score == r2_score(TWO_OUTPUTS, fitted.predict(X, PARTIES))
    assert score > 0.3


def test_outputs_of_different_units_weigh_equally():
    scaled = TWO_OUTPUTS * [1.0, 2.0**40] + [2.0**20, 0.0]

    model = KNNPerRegressor(**QUICK).fit(X, TWO_OUTPUTS, parties=PARTIES)
    scaled_model = KNNPerRegressor(**QUICK).fit(X, scaled, parties=PARTIES)

    assert {n: c.weight for n, c in model.clients_.items()} == {
        n: c.weight for n, c in scaled_model.clients_.items()
    }
    expected = model.predict(X, PARTIES) * [1.0, 2.0**40] + [2.0**20, 0.0]
    np.testing.assert_allclose(scaled_model.predict(X, PARTIES), expected, rtol=1e-4)


def test_targets_are_standardized_as_those_of_the_pooled_table():
    model = KNNPerRegressor(**QUICK).fit(X, TWO_OUTPUTS, parties=PARTIES)

    np.testing.assert_allclose(
        model.overall_, [TWO_OUTPUTS.mean(axis=0), TWO_OUTPUTS.std(axis=0)], rtol=1e-12
    )


def test_an_outlying_client_is_predicted_by_its_memory():
    higher = Y + 500 * (PARTIES == "south")

    model = KNNPerRegressor(n_rounds=10, hidden=(16,)).fit(X, higher, parties=PARTIES)

    with pytest.warns(UserWarning, match="parties= is missing"):
        shared = r2_score(higher, model.predict(X))
    assert shared < 0.2
    assert model.score(X, higher, parties=PARTIES) > 0.9


def test_the_same_seed_gives_the_same_bits():
    first, second = (
        KNNPerRegressor(**QUICK).fit(X, Y, parties=PARTIES).predict(X, PARTIES) for _ in "ab"
    )

    assert first.tobytes() == second.tobytes()


def test_masked_sums_give_the_bits_of_plain_ones():
    owner = np.array(["a", "b", "c"])[np.arange(160) % 3]
    plain = KNNPerRegressor(**QUICK, trainer="reuse").fit(X, TWO_OUTPUTS, parties=owner)

    masked = KNNPerRegressor(**QUICK, sums="masked").fit(X, TWO_OUTPUTS, parties=owner)

    assert masked.predict(X, owner).tobytes() == plain.predict(X, owner).tobytes()


def test_an_unknown_client_gets_the_shared_network_and_is_named(fitted):
    center, scale = fitted.overall_
    shared = center + scale * fitted.embed(X[:2])[1]

    with pytest.warns(UserWarning, match=r"clients \['moon'\] are unknown") as caught:
        predictions = fitted.predict(X[:2], parties=["moon", "north"])

    assert caught[0].filename == __file__  # the warning points to the caller
    assert predictions[0].tolist() == shared[0].tolist()
    assert predictions[1].tolist() != shared[1].tolist()


@pytest.mark.parametrize("combine", ["paper", "pool"])
def test_adding_a_client_changes_no_other_client(combine):
    model = KNNPerRegressor(**QUICK, combine=combine).fit(X[:100], Y[:100], PARTIES[:100])
    before = model.predict(X[:100], PARTIES[:100])

    model.add_client("new", X[100:], Y[100:] + 300)

    center, scale = model.overall_
    shared = center + scale * model.embed(X[100:])[1][:, 0]
    state = model.predict(X[100:], ["new"] * 60)
    assert len(model.clients_["new"].memory) == 60
    assert model.predict(X[:100], PARTIES[:100]).tobytes() == before.tobytes()
    assert state.mean() > shared.mean() + 100
    with pytest.raises(ValueError, match="already exists"):
        model.add_client("new", X[:5], Y[:5])


def test_rows_are_added_and_removed_by_name(fitted):
    before = fitted.predict(X, PARTIES)

    fitted.update("north", X[:3], TWO_OUTPUTS[:3] + 100, ids=["a", "b", "c"])
    changed = fitted.predict(X, PARTIES)
    fitted.forget("north", ["a", "b", "c"])

    assert changed.tobytes() != before.tobytes()
    assert fitted.predict(X, PARTIES).tobytes() == before.tobytes()
    with pytest.raises(KeyError, match="no rows named"):
        fitted.forget("north", ["a"])
    with pytest.raises(ValueError, match="client 'moon' is unknown; add it with add_client"):
        fitted.update("moon", X[:1], TWO_OUTPUTS[:1])


def test_without_rows_the_shared_network_predicts():
    model = KNNPerRegressor(**QUICK).fit(X, TWO_OUTPUTS, parties=PARTIES)
    model.forget("north", model.clients_["north"].memory.ids)
    center, scale = model.overall_

    predicted = model.predict(X[:4], ["north"] * 4)

    assert predicted.tolist() == (center + scale * model.embed(X[:4])[1]).tolist()


def test_one_row_clients_and_constant_targets_work():
    owner = np.array(["big"] * 159 + ["tiny"])

    model = KNNPerRegressor(**QUICK, combine="pool").fit(X, np.full(160, 7.0), parties=owner)

    assert model.overall_.tolist() == [[7.0], [1.0]]
    assert np.isfinite(model.predict(X, owner)).all()


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"n_neighbors": 0}, "expected n_neighbors as an integer of 1 or more"),
        ({"combine": "vote"}, "expected combine among"),
        (
            {"strategy": "drift"},
            r"expected strategy among .* got 'drift'; drift detection needs",
        ),
        ({"memory": "centers"}, r"expected memory among .* got 'centers'; centers need classes"),
        ({"memory": "zip"}, r"expected memory among \('exact', '8-bit', 'product'\), got 'zip'"),
        ({"validation": 1.0}, "expected validation between 0 and 1"),
        ({"trainer": "fast"}, "expected method 'auto', 'stacked' or 'reuse'"),
        ({"model": nn.Linear(10, 1)}, "no layer named 'body'"),
    ],
)
def test_invalid_parameters_are_refused(changed, words):
    with pytest.raises(ValueError, match=words):
        KNNPerRegressor(**changed).fit(X, Y)


@pytest.fixture(scope="module", params=["8-bit", "product"])
def coded(request):
    return KNNPerRegressor(**QUICK, memory=request.param).fit(X, TWO_OUTPUTS, parties=PARTIES)


def test_coded_keys_keep_targets_and_count_their_bytes(coded):
    exact = KNNPerRegressor(**QUICK).fit(X, TWO_OUTPUTS, parties=PARTIES)

    for name, client in coded.clients_.items():
        memory, n_rows = client.memory, int((name == PARTIES).sum())
        assert memory.labels.tobytes() == exact.clients_[name].memory.labels.tobytes()
        assert memory.labels.shape == (n_rows, 2)
        shared = memory.codec.nbytes if coded.memory == "product" else 0
        assert memory.nbytes == n_rows * (memory.codec.n_bytes + 2 * 8) + shared
    assert coded.weights_.tobytes() == exact.weights_.tobytes()  # training does not use memories


def test_coded_predictions_are_near_the_exact_ones():
    exact = KNNPerRegressor(**QUICK).fit(X, TWO_OUTPUTS, parties=PARTIES)
    eight_bit = KNNPerRegressor(**QUICK, memory="8-bit").fit(X, TWO_OUTPUTS, parties=PARTIES)
    product = KNNPerRegressor(**QUICK, memory="product").fit(X, TWO_OUTPUTS, parties=PARTIES)

    def gap(other):
        differences = (other.predict(X, PARTIES) - exact.predict(X, PARTIES)) / exact.overall_[1]
        return np.sqrt((differences**2).mean())

    assert 0 < gap(eight_bit) < 0.05
    assert 0 < gap(product) < 0.5
    assert product.score(X, TWO_OUTPUTS, parties=PARTIES) > 0.3


def test_coded_memories_add_and_remove_rows(coded):
    before = coded.predict(X, PARTIES)

    coded.add_client(f"new {coded.memory}", X[:30], TWO_OUTPUTS[:30] + 300)
    coded.update("north", X[:3], TWO_OUTPUTS[:3], ids=["a", "b", "c"])

    assert type(coded.clients_[f"new {coded.memory}"].memory).__name__ == "CodedDatastore"
    if coded.memory == "8-bit":
        coded.forget("north", ["a", "b", "c"])
        assert coded.predict(X, PARTIES).tobytes() == before.tobytes()
    else:
        with pytest.raises(RebuildNeeded, match="again"):
            coded.forget("north", ["a"])
        assert "a" in coded.clients_["north"].memory.ids


@pytest.mark.parametrize("strategy", ["fifo", "reservoir"])
def test_a_full_coded_memory_evicts_targets_with_keys(strategy):
    options = {"capacity": 30, "strategy": strategy}
    coded_model, exact_model = (
        KNNPerRegressor(**QUICK, memory=memory, **options).fit(X[:100], Y[:100])
        for memory in ("8-bit", "exact")
    )

    for model in (coded_model, exact_model):
        model.update("all", X[100:], Y[100:])

    coded_memory, expected = coded_model.clients_["all"].memory, exact_model.clients_["all"].memory
    assert coded_memory.ids == expected.ids
    assert coded_memory.labels.tobytes() == expected.labels.tobytes()
    assert len(coded_memory) == 30


def test_a_pool_uses_decoded_keys():
    model = KNNPerRegressor(**QUICK, memory="8-bit", combine="pool").fit(
        X, TWO_OUTPUTS, parties=PARTIES
    )

    assert model.pool_.experts == REGRESSION.experts
    assert model.score(X, TWO_OUTPUTS, parties=PARTIES) > 0.3


def test_clients_share_a_public_codebook_and_forget_with_it():
    public = np.random.default_rng(0).normal(size=(300, 10)) * X.std(axis=0)
    model = KNNPerRegressor(**QUICK).fit(X, TWO_OUTPUTS, parties=PARTIES)
    targets = model.clients_["north"].memory.labels.tolist()
    before = model.predict(X, PARTIES)

    model.share_codebook(public, n_stretches=8)

    memory = model.clients_["north"].memory
    assert memory.nbytes == len(memory) * (8 + 2 * 8)
    assert memory.labels.tolist() == targets
    gap = (model.predict(X, PARTIES) - before) / model.overall_[1]
    assert 0 < np.sqrt((gap**2).mean()) < 0.5
    model.forget("north", memory.ids[:10])
    assert model.clients_["north"].memory.labels.tolist() == targets[10:]


def test_classification_parameters_are_not_accepted():
    parameters = set(KNNPerRegressor().get_params())

    assert parameters.isdisjoint({"privacy", "max_grad_norm", "classes"})
    assert set(KNNPerClassifier().get_params()) - parameters == {
        "privacy", "max_grad_norm", "classes",
    }  # fmt: skip


def test_a_network_with_other_outputs_is_refused():
    module = nn.Sequential()
    module.add_module("body", nn.Linear(10, 6))
    module.add_module("head", nn.Linear(6, 3))

    with pytest.raises(ValueError, match=r"expected a (network|model) .*1 (outputs|scores)"):
        KNNPerRegressor(module, n_rounds=2).fit(X, Y)


def test_invalid_targets_of_new_rows_are_refused(fitted):
    with pytest.raises(ValueError, match="expected 2 finite numbers for each row"):
        fitted.update("north", X[:2], Y[:2])
    with pytest.raises(ValueError, match="expected 2 finite numbers for each row"):
        fitted.add_client("new", X[:2], [[np.nan, 1.0], [1.0, 1.0]])
    with pytest.raises(ValueError, match="expected one label for each of 2 rows, got 3"):
        fitted.add_client("new", X[:2], TWO_OUTPUTS[:3])
    assert set(fitted.clients_) == {"north", "south"}


def test_embeddings_that_are_not_finite_are_refused(fitted):
    with pytest.raises(DataError, match="embeddings of these rows are not finite"):
        fitted.update("north", np.full((1, 10), 1e300), TWO_OUTPUTS[:1])


def test_the_checkpoint_of_other_targets_is_refused(tmp_path, monkeypatch):
    expected = KNNPerRegressor(**QUICK).fit(X, Y, parties=PARTIES)
    path = tmp_path / "training"
    interrupt_second_write(monkeypatch)
    with pytest.raises(KeyboardInterrupt):
        KNNPerRegressor(**QUICK, checkpoint=path).fit(X, Y, parties=PARTIES)
    with pytest.raises(ModelFileError, match="belongs to another training"):
        KNNPerRegressor(**QUICK, checkpoint=path).fit(X, Y + 1, parties=PARTIES)
    resumed = KNNPerRegressor(**QUICK, checkpoint=path).fit(X, Y, parties=PARTIES)

    assert resumed.weights_.tobytes() == expected.weights_.tobytes()
    assert not path.exists()
