"""Well-formed requests with odd values get a reply or a typed refusal, never another error."""

import random
import warnings
from collections import Counter

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fedneighbors.errors import WireError
from fedneighbors.federation._messages import decode, encode
from fedneighbors.federation._roles import serve
from fedneighbors.methods.fedknn import _provider as fedknn
from fedneighbors.methods.flynn import protocol as flynn
from fedneighbors.methods.knnper import _client as knnper
from fedneighbors.tabular import _schema as schema
from tests.fuzz.corpus import record_requests, requests, run_few_methods, train_networks
from tests.fuzz.odd_values import change_field

INVALID = (ValueError, TypeError, AttributeError, ArithmeticError, LookupError, WireError)
METHODS = ("FedPNNParty", "FlyNNParty", "KNNPerParty", "Provider", "PrivateKNNPerParty")


@pytest.fixture(autouse=True)
def few_cells(monkeypatch):
    """Lower the limit of cells, which otherwise allows arrays of 2 GiB."""
    for module in (schema, flynn, knnper, fedknn):  # each imports the limit by its value
        monkeypatch.setattr(module, "MAX_CELLS", 1 << 20)


@pytest.fixture(scope="module")
def inputs():
    """Return requests of real trainings, with the parties that answered them."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return record_requests(run_few_methods, train_networks)


def make_odd(frame, party, rng):
    """Return a well-formed request with changed fields, or None if its class rejects them."""
    request = decode(frame, party.accepts)
    try:
        for _ in range(rng.choice((1, 1, 2, 3))):
            request = change_field(request, rng)
        odd = encode(request)
        decode(odd, party.accepts)
    except INVALID:
        return None
    return odd


def send_odd_requests(inputs, rng, n):
    """Send changed requests to their parties; return the number served, by party class."""
    served = Counter()
    for _ in range(n):
        frame, party = rng.choice(inputs)
        odd = make_odd(frame, party, rng)
        if odd is not None:
            serve(party, odd)
            served[type(party).__name__] += 1
    return served


@pytest.mark.filterwarnings("ignore")
@settings(
    max_examples=10, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(seed=st.integers(0, 2**32))
def test_odd_requests_raise_no_untyped_error(inputs, seed):
    send_odd_requests(inputs, random.Random(seed), 30)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_odd_requests_to_all_parties_raise_no_untyped_error():
    served = send_odd_requests(requests(None, False).inputs, random.Random(1), 30_000)

    assert all(served[name] >= 100 for name in METHODS)
