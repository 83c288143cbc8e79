"""KNNPerRegressor in scikit-learn's manner, and over the life of its clients."""

import numpy as np
import pytest
from sklearn.datasets import load_diabetes
from sklearn.metrics import r2_score
from sklearn.utils.estimator_checks import parametrize_with_checks
from torch import nn

from fedneighbors.errors import DataError, ModelFileError, RebuildNeeded
from fedneighbors.methods.knnper import KNNPerClassifier, KNNPerRegressor
from fedneighbors.methods.knnper._task import REGRESSION

X, Y = load_diabetes(return_X_y=True)
X, Y = X[:160], Y[:160]
CLINIC = np.where(np.arange(len(Y)) % 3 == 0, "south", "north")
BOTH = np.column_stack([Y, X[:, 2] * 1e-3])  # two outputs with very different units

QUICK = {"hidden": (16, 8), "n_rounds": 3}

# scikit-learn checks that cannot pass, each with its reason.
CANNOT_HOLD = {}


@parametrize_with_checks(
    [KNNPerRegressor(hidden=(16,), n_rounds=5, learning_rate=0.1)],
    expected_failed_checks=lambda _: CANNOT_HOLD,
)
def test_scikit_learn_accepts_the_estimator(estimator, check):
    check(estimator)


@pytest.fixture(scope="module", params=["paper", "pool"])
def fitted(request):
    return KNNPerRegressor(**QUICK, combine=request.param).fit(X, BOTH, parties=CLINIC)


def test_predictions_have_the_shape_of_the_targets(fitted):
    flat = KNNPerRegressor(**QUICK).fit(X, Y, parties=CLINIC)
    column = KNNPerRegressor(**QUICK).fit(X, Y[:, None], parties=CLINIC)

    assert fitted.predict(X, CLINIC).shape == (160, 2)
    assert flat.predict(X, CLINIC).shape == (160,)
    assert column.predict(X, CLINIC)[:, 0].tolist() == flat.predict(X, CLINIC).tolist()


def test_the_score_is_the_share_of_explained_variance(fitted):
    score = fitted.score(X, BOTH, parties=CLINIC)

    assert score == r2_score(BOTH, fitted.predict(X, CLINIC))
    assert score > 0.3


def test_outputs_of_far_units_weigh_alike():
    scaled = BOTH * [1.0, 2.0**40] + [2.0**20, 0.0]

    one = KNNPerRegressor(**QUICK).fit(X, BOTH, parties=CLINIC)
    other = KNNPerRegressor(**QUICK).fit(X, scaled, parties=CLINIC)

    assert {n: c.weight for n, c in one.clients_.items()} == {
        n: c.weight for n, c in other.clients_.items()
    }
    expected = one.predict(X, CLINIC) * [1.0, 2.0**40] + [2.0**20, 0.0]
    np.testing.assert_allclose(other.predict(X, CLINIC), expected, rtol=1e-4)


def test_targets_are_standardized_as_those_of_the_pooled_table():
    found = KNNPerRegressor(**QUICK).fit(X, BOTH, parties=CLINIC)

    np.testing.assert_allclose(found.overall_, [BOTH.mean(axis=0), BOTH.std(axis=0)], rtol=1e-12)


def test_an_outlying_client_is_served_by_its_memory():
    higher = Y + 500 * (CLINIC == "south")

    found = KNNPerRegressor(n_rounds=10, hidden=(16,)).fit(X, higher, parties=CLINIC)

    with pytest.warns(UserWarning, match="parties= is missing"):
        shared = r2_score(higher, found.predict(X))
    assert shared < 0.2
    assert found.score(X, higher, parties=CLINIC) > 0.9


def test_the_same_seed_gives_the_same_bits():
    once, again = (
        KNNPerRegressor(**QUICK).fit(X, Y, parties=CLINIC).predict(X, CLINIC) for _ in "ab"
    )

    assert once.tobytes() == again.tobytes()


def test_masked_sums_give_the_bits_of_plain_ones():
    owner = np.array(["a", "b", "c"])[np.arange(160) % 3]
    plain = KNNPerRegressor(**QUICK, trainer="reuse").fit(X, BOTH, parties=owner)

    masked = KNNPerRegressor(**QUICK, sums="masked").fit(X, BOTH, parties=owner)

    assert masked.predict(X, owner).tobytes() == plain.predict(X, owner).tobytes()


def test_an_unknown_client_gets_the_shared_network_and_is_named(fitted):
    center, scale = fitted.overall_
    shared = center + scale * fitted.embed(X[:2])[1]

    with pytest.warns(UserWarning, match=r"clients \['moon'\] are unknown") as caught:
        found = fitted.predict(X[:2], parties=["moon", "north"])

    assert caught[0].filename == __file__  # the line that asked is shown
    assert found[0].tolist() == shared[0].tolist()
    assert found[1].tolist() != shared[1].tolist()


@pytest.mark.parametrize("combine", ["paper", "pool"])
def test_a_later_client_is_served_and_changes_no_other(combine):
    found = KNNPerRegressor(**QUICK, combine=combine).fit(X[:100], Y[:100], CLINIC[:100])
    before = found.predict(X[:100], CLINIC[:100])

    found.add_client("new", X[100:], Y[100:] + 300)

    center, scale = found.overall_
    shared = center + scale * found.embed(X[100:])[1][:, 0]
    own = found.predict(X[100:], ["new"] * 60)
    assert len(found.clients_["new"].memory) == 60
    assert found.predict(X[:100], CLINIC[:100]).tobytes() == before.tobytes()
    assert own.mean() > shared.mean() + 100
    with pytest.raises(ValueError, match="already exists"):
        found.add_client("new", X[:5], Y[:5])


def test_rows_come_and_go_by_their_names(fitted):
    before = fitted.predict(X, CLINIC)

    fitted.update("north", X[:3], BOTH[:3] + 100, ids=["a", "b", "c"])
    changed = fitted.predict(X, CLINIC)
    fitted.forget("north", ["a", "b", "c"])

    assert changed.tobytes() != before.tobytes()
    assert fitted.predict(X, CLINIC).tobytes() == before.tobytes()
    with pytest.raises(KeyError, match="no rows named"):
        fitted.forget("north", ["a"])
    with pytest.raises(ValueError, match="client 'moon' is unknown; add it with add_client"):
        fitted.update("moon", X[:1], BOTH[:1])


def test_an_emptied_memory_leaves_the_shared_network():
    found = KNNPerRegressor(**QUICK).fit(X, BOTH, parties=CLINIC)
    found.forget("north", found.clients_["north"].memory.ids)
    center, scale = found.overall_

    predicted = found.predict(X[:4], ["north"] * 4)

    assert predicted.tolist() == (center + scale * found.embed(X[:4])[1]).tolist()


def test_one_row_clients_and_constant_targets_work():
    owner = np.array(["big"] * 159 + ["tiny"])

    found = KNNPerRegressor(**QUICK, combine="pool").fit(X, np.full(160, 7.0), parties=owner)

    assert found.overall_.tolist() == [[7.0], [1.0]]
    assert np.isfinite(found.predict(X, owner)).all()


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
def test_parameters_are_checked_with_the_way_out(changed, words):
    with pytest.raises(ValueError, match=words):
        KNNPerRegressor(**changed).fit(X, Y)


@pytest.fixture(scope="module", params=["8-bit", "product"])
def coded(request):
    return KNNPerRegressor(**QUICK, memory=request.param).fit(X, BOTH, parties=CLINIC)


def test_coded_keys_keep_targets_and_count_their_bytes(coded):
    exact = KNNPerRegressor(**QUICK).fit(X, BOTH, parties=CLINIC)

    for name, own in coded.clients_.items():
        memory, n_rows = own.memory, int((name == CLINIC).sum())
        assert memory.labels.tobytes() == exact.clients_[name].memory.labels.tobytes()
        assert memory.labels.shape == (n_rows, 2)
        shared = memory.codec.nbytes if coded.memory == "product" else 0
        assert memory.nbytes == n_rows * (memory.codec.n_bytes + 2 * 8) + shared
    assert coded.weights_.tobytes() == exact.weights_.tobytes()  # training does not look at them


def test_coded_predictions_are_near_the_exact_ones():
    exact = KNNPerRegressor(**QUICK).fit(X, BOTH, parties=CLINIC)
    eight = KNNPerRegressor(**QUICK, memory="8-bit").fit(X, BOTH, parties=CLINIC)
    product = KNNPerRegressor(**QUICK, memory="product").fit(X, BOTH, parties=CLINIC)

    def gap(other):
        found = (other.predict(X, CLINIC) - exact.predict(X, CLINIC)) / exact.overall_[1]
        return np.sqrt((found**2).mean())

    assert 0 < gap(eight) < 0.05
    assert 0 < gap(product) < 0.5
    assert product.score(X, BOTH, parties=CLINIC) > 0.3


def test_clients_and_rows_come_and_go_at_coded_memories(coded):
    before = coded.predict(X, CLINIC)

    coded.add_client(f"new {coded.memory}", X[:30], BOTH[:30] + 300)
    coded.update("north", X[:3], BOTH[:3], ids=["a", "b", "c"])

    assert type(coded.clients_[f"new {coded.memory}"].memory).__name__ == "CodedDatastore"
    if coded.memory == "8-bit":
        coded.forget("north", ["a", "b", "c"])
        assert coded.predict(X, CLINIC).tobytes() == before.tobytes()
    else:
        with pytest.raises(RebuildNeeded, match="again"):
            coded.forget("north", ["a"])
        assert "a" in coded.clients_["north"].memory.ids


@pytest.mark.parametrize("strategy", ["fifo", "reservoir"])
def test_a_full_coded_memory_evicts_targets_with_keys(strategy):
    room = {"capacity": 30, "strategy": strategy}
    found, exact = (
        KNNPerRegressor(**QUICK, memory=memory, **room).fit(X[:100], Y[:100])
        for memory in ("8-bit", "exact")
    )

    for each in (found, exact):
        each.update("all", X[100:], Y[100:])

    kept, expected = found.clients_["all"].memory, exact.clients_["all"].memory
    assert kept.ids == expected.ids
    assert kept.labels.tobytes() == expected.labels.tobytes()
    assert len(kept) == 30


def test_a_pool_reads_keys_of_codes():
    found = KNNPerRegressor(**QUICK, memory="8-bit", combine="pool").fit(X, BOTH, parties=CLINIC)

    assert set(found.pool_) == set(REGRESSION.experts)
    assert found.score(X, BOTH, parties=CLINIC) > 0.3


def test_clients_share_a_public_codebook_and_forget_with_it():
    public = np.random.default_rng(0).normal(size=(300, 10)) * X.std(axis=0)
    found = KNNPerRegressor(**QUICK).fit(X, BOTH, parties=CLINIC)
    targets = found.clients_["north"].memory.labels.tolist()
    before = found.predict(X, CLINIC)

    found.share_codebook(public, n_stretches=8)

    memory = found.clients_["north"].memory
    assert memory.nbytes == len(memory) * (8 + 2 * 8)
    assert memory.labels.tolist() == targets
    gap = (found.predict(X, CLINIC) - before) / found.overall_[1]
    assert 0 < np.sqrt((gap**2).mean()) < 0.5
    found.forget("north", memory.ids[:10])
    assert found.clients_["north"].memory.labels.tolist() == targets[10:]


def test_classification_parameters_are_not_accepted():
    parameters = set(KNNPerRegressor().get_params())

    assert parameters.isdisjoint({"privacy", "max_grad_norm", "classes"})
    assert set(KNNPerClassifier().get_params()) - parameters == {
        "privacy", "max_grad_norm", "classes",
    }  # fmt: skip


def test_a_network_of_other_outputs_is_refused_with_the_way_out():
    module = nn.Sequential()
    module.add_module("body", nn.Linear(10, 6))
    module.add_module("head", nn.Linear(6, 3))

    with pytest.raises(ValueError, match=r"expected a (network|model) .*1 (outputs|scores)"):
        KNNPerRegressor(module, n_rounds=2).fit(X, Y)


def test_targets_of_other_outputs_or_without_a_value_stay_out(fitted):
    with pytest.raises(ValueError, match="expected 2 finite numbers for each row"):
        fitted.update("north", X[:2], Y[:2])
    with pytest.raises(ValueError, match="expected 2 finite numbers for each row"):
        fitted.add_client("new", X[:2], [[np.nan, 1.0], [1.0, 1.0]])
    with pytest.raises(ValueError, match="expected one label for each of 2 rows, got 3"):
        fitted.add_client("new", X[:2], BOTH[:3])
    assert set(fitted.clients_) == {"north", "south"}


def test_embeddings_that_are_not_finite_stay_out(fitted):
    with pytest.raises(DataError, match="embeddings of these rows are not finite"):
        fitted.update("north", np.full((1, 10), 1e300), BOTH[:1])


def test_the_checkpoint_of_other_targets_is_refused(tmp_path, monkeypatch):
    import fedneighbors.methods.knnper._checkpoint as on_disk

    whole = KNNPerRegressor(**QUICK).fit(X, Y, parties=CLINIC)
    keep, kept = on_disk.Checkpoint.write, []

    def kept_twice(self, stage):
        keep(self, stage)
        kept.append(stage)
        if len(kept) == 2:
            raise KeyboardInterrupt

    path = tmp_path / "training"
    monkeypatch.setattr(on_disk.Checkpoint, "write", kept_twice)
    with pytest.raises(KeyboardInterrupt):
        KNNPerRegressor(**QUICK, checkpoint=path).fit(X, Y, parties=CLINIC)
    with pytest.raises(ModelFileError, match="belongs to another training"):
        KNNPerRegressor(**QUICK, checkpoint=path).fit(X, Y + 1, parties=CLINIC)
    again = KNNPerRegressor(**QUICK, checkpoint=path).fit(X, Y, parties=CLINIC)

    assert again.weights_.tobytes() == whole.weights_.tobytes()
    assert not path.exists()
