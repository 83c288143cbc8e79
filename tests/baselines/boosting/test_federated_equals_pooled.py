"""The model over parties equals that of the pooled rows, bit for bit."""

import numpy as np
import pytest

from fedneighbors.baselines import FederatedBoostingClassifier, FederatedBoostingRegressor
from fedneighbors.baselines.boosting._party import BoostingParty
from fedneighbors.baselines.boosting._protocol import BoostingSettings, coordinate
from fedneighbors.errors import DataError
from fedneighbors.federation._inprocess import run
from tests.baselines.boosting.federations import draw_federation


def train(settings, parties, **options):
    """Return the model, or None if all rows are held out."""
    try:
        model = run(coordinate(settings), parties, **options).result
    except DataError:
        return None
    assert all(party.model.to_bytes() == model.to_bytes() for party in parties)
    return model


def check_equality(seed, **options):
    settings, x, y, parties = draw_federation(seed)

    federated = train(settings, parties, **options)

    pooled = train(settings, [BoostingParty("all", x, y)])
    if pooled is None:
        assert federated is None
        return 0
    assert federated.to_bytes() == pooled.to_bytes()
    assert federated.scores(x).tobytes() == pooled.scores(x).tobytes()
    return len(pooled.trees.features) - len(pooled.trees.roots)


def test_models_of_random_federations_equal_the_pooled_ones():
    n_nodes = [check_equality(seed) for seed in range(30)]

    assert np.count_nonzero(n_nodes) > 15  # most trees are more than a root


@pytest.mark.slow
def test_models_of_many_federations_equal_the_pooled_ones():
    n_nodes = [check_equality(seed) for seed in range(30, 640)]

    assert np.count_nonzero(n_nodes) > 300


def test_models_of_masked_sums_equal_the_pooled_ones():
    assert any(check_equality(seed, sums="masked") for seed in range(5))


@pytest.mark.slow
def test_models_of_many_masked_sums_equal_the_pooled_ones():
    assert any(check_equality(seed, sums="masked") for seed in range(5, 60))


def test_a_rebuilt_party_gives_the_same_model():
    class ForgetfulParty(BoostingParty):
        def answer(self, request):
            copy = BoostingParty(self.name, self._x, self._y)
            reply = copy.answer(request)
            self.model = copy.model
            return reply

    for seed in range(4):
        settings, _, _, parties = draw_federation(seed)
        forgetful = [ForgetfulParty(party.name, party._x, party._y) for party in parties]

        assert train(settings, forgetful).to_bytes() == train(settings, parties).to_bytes()


def test_a_party_follows_another_training_with_the_same_plan():
    settings, _, _, parties = draw_federation(1)
    longer = BoostingSettings(**{**vars(settings), "max_iter": 4, "max_leaf_nodes": 5})
    first = [train(s, parties).to_bytes() for s in (settings, longer)]

    again = [train(s, parties).to_bytes() for s in (settings, longer)]

    assert again == first


@pytest.mark.parametrize("estimator", [FederatedBoostingClassifier, FederatedBoostingRegressor])
def test_estimators_give_the_same_bits_for_any_owners(estimator):
    rng = np.random.default_rng(0)
    x = np.where(rng.random((300, 4)) < 0.1, np.nan, rng.normal(size=(300, 4)))
    y = np.nansum(x, axis=1) + rng.normal(size=300)
    y = y > 0 if estimator is FederatedBoostingClassifier else y
    options = {"max_iter": 5, "early_stopping": True}

    pooled = estimator(**options).fit(x, y)
    federated = estimator(**options).fit(x, y, parties=rng.integers(0, 5, 300))

    assert federated.model_.to_bytes() == pooled.model_.to_bytes()
    assert federated.predict(x).tobytes() == pooled.predict(x).tobytes()
    assert not pooled.run_record_.rounds[-1].upload_bytes
    assert set(federated.run_record_.rounds[-1].upload_bytes) == {"0", "1", "2", "3", "4"}
