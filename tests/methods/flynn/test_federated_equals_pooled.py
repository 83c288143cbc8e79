import numpy as np
import pytest
import scipy.sparse
from hypothesis import given, settings
from hypothesis import strategies as st

from fedneighbors import FlyNNClassifier
from fedneighbors.methods.flynn._settings import FlyNNSettings
from fedneighbors.methods.flynn.protocol import FlyNNParty
from tests.methods.flynn.federations import DTYPES, LABELS, federations, train
from tests.seeds import cases

SETTINGS = FlyNNSettings(n_units=50, n_inputs=2, n_active=7)


def make_table(n_rows=60, seed=0):
    rng = np.random.default_rng(seed)
    y = rng.integers(0, 3, n_rows)
    return rng.normal(size=(n_rows, 4)) + y[:, None], y


@settings(max_examples=cases(1_000))
@given(federations())
def test_any_federation_trains_the_model_of_the_pooled_table(federation):
    pooled = train(federation.pooled(), federation.settings)
    parties = federation.parties()

    model = train(parties, federation.settings)

    assert model.to_bytes() == pooled.to_bytes()
    assert {party.model.to_bytes() for party in parties} == {pooled.to_bytes()}


@settings(max_examples=cases(150))
@given(federations(), st.randoms(use_true_random=False))
def test_names_and_orders_of_parties_and_rows_do_not_matter(federation, random):
    first = train(federation.parties(), federation.settings)
    names = random.sample(["one", "Two", "3", "", "Zürich", " "], federation.n_parties)
    others = []
    for k, name in enumerate(names):
        rows = np.flatnonzero(federation.owner == k)
        random.shuffle(rows)
        others.append(federation.party(name, rows))
    random.shuffle(others)

    second = train(others, federation.settings)

    assert second.to_bytes() == first.to_bytes()


@settings(max_examples=cases(150))
@given(federations(), st.data())
def test_the_dtype_of_a_partys_numbers_does_not_matter(federation, data):
    x = np.asarray(federation.x.toarray() if hasattr(federation.x, "toarray") else federation.x)
    x = x.astype(np.int64) % 100 if x.dtype.kind == "f" else x % 100
    pooled = train([FlyNNParty("all", x, federation.y)], federation.settings)
    parties = []
    for k in range(federation.n_parties):
        rows = federation.owner == k
        part = x[rows].astype(data.draw(st.sampled_from([d for d in DTYPES if d != x.dtype])))
        if (part != x[rows]).any():
            part = x[rows]  # negative numbers do not fit uint8
        part = scipy.sparse.csr_array(part) if data.draw(st.booleans()) else part
        parties.append(FlyNNParty(str(k), part, federation.y[rows]))

    model = train(parties, federation.settings)

    assert model.to_bytes() == pooled.to_bytes()


@settings(max_examples=100)
@given(federations())
def test_the_estimator_with_parties_equals_the_estimator_without(federation):
    flynn_settings = federation.settings
    classifier = FlyNNClassifier(
        n_units=flynn_settings.n_units,
        n_inputs=flynn_settings.n_inputs,
        n_active=flynn_settings.n_active,
        decay=flynn_settings.decay,
        standardize=flynn_settings.standardize,
        expand=flynn_settings.expand,
        class_normalized=flynn_settings.class_normalized,
        random_state=flynn_settings.seed,
    )
    pooled = classifier.fit(federation.x, federation.y).model_.to_bytes()

    federated = classifier.fit(federation.x, federation.y, parties=federation.owner)

    assert federated.model_.to_bytes() == pooled
    assert federated.classes_.tolist() == np.unique(federation.y).tolist()
    assert set(federated.predict(federation.x)) <= set(federation.y)


@pytest.mark.parametrize("kind", sorted(LABELS))
def test_defaults_train_the_model_of_the_pooled_table(kind):
    x, y = make_table()
    labels = LABELS[kind][y]
    owner = np.arange(len(y)) % 3

    federated = FlyNNClassifier().fit(x, labels, parties=owner)
    pooled = FlyNNClassifier().fit(x, labels)

    assert federated.model_.to_bytes() == pooled.model_.to_bytes()
    assert federated.classes_.dtype == pooled.classes_.dtype


def test_a_hundred_one_row_parties_equal_the_pooled_table():
    x, y = make_table(100)
    parties = [FlyNNParty(f"{k}", x[[k]], y[[k]]) for k in range(100)]

    model = train(parties, SETTINGS)

    assert model.to_bytes() == train([FlyNNParty("all", x, y)], SETTINGS).to_bytes()


def test_counts_beyond_sixteen_bits_equal_the_pooled_table():
    x = np.arange(70_000)[:, None] % 7
    y = x[:, 0] % 2
    flynn_settings = FlyNNSettings(
        n_units=3, n_inputs=1, n_active=2, expand=None, standardize=False
    )

    model = train(
        [FlyNNParty("a", x[:66_000], y[:66_000]), FlyNNParty("b", x[66_000:], y[66_000:])],
        flynn_settings,
    )

    assert model.counts.sum() == 2 * 70_000
    assert model.counts.max() == 40_000
    assert model.to_bytes() == train([FlyNNParty("all", x, y)], flynn_settings).to_bytes()


def test_parties_in_processes_equal_parties_in_threads():
    x, y = make_table()
    rows = {"a": slice(0, 41), "b": slice(41, None)}

    models = [
        train(
            [FlyNNParty(name, x[part], y[part]) for name, part in rows.items()],
            SETTINGS,
            workers=kind,
        )
        for kind in ("threads", "processes")
    ]

    assert models[0].to_bytes() == models[1].to_bytes()


def test_the_number_of_threads_changes_nothing():
    x, y = make_table(5_000)
    owner = np.arange(len(y)) % 5
    one, two = (FlyNNClassifier(n_units=300, n_jobs=n_jobs) for n_jobs in (1, 2))

    models = [
        classifier.fit(x, y, parties=parties).model_.to_bytes()
        for classifier in (one, two)
        for parties in (None, owner)
    ]

    assert len(set(models)) == 1
    assert (one.decision_function(x) == two.decision_function(x)).all()
