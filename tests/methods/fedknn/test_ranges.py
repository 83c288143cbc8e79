"""Radius search returns all objects within a distance, and those only."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedneighbors import FederatedNeighbors
from fedneighbors.errors import ProtocolError
from fedneighbors.federation._inprocess import run
from fedneighbors.methods.fedknn._messages import CountReply
from fedneighbors.methods.fedknn._ranges import within
from tests.methods.fedknn.federations import KEY, BoundedLine, Federation, federations
from tests.naive.fedknn import nearest


@settings(max_examples=300, deadline=None)
@given(federations(), st.sampled_from([0.0, 0.5, 1.0, 3.0, 1e5, 1e7]))
def test_all_objects_within_a_radius_come_in_order(federation, radius):
    coordinator = within(repr(federation.query).encode(), radius, name="q")

    answer = run(coordinator, federation.providers()).result

    everything = nearest(federation.tables, federation.query, 10**6, key=KEY)
    merged = answer.merged
    found = list(zip(merged.distances.tolist(), merged.owners, merged.ids, strict=True))
    assert found == [item for item in everything if item[0] <= radius]
    assert answer.exact


def test_a_provider_that_returns_less_than_it_counted_is_named():
    class Boaster:
        def __init__(self, inner):
            self.inner, self.name, self.accepts = inner, inner.name, inner.accepts

        def answer(self, request):
            reply = self.inner.answer(request)
            return CountReply(reply.count + 1) if isinstance(reply, CountReply) else reply

    (honest,) = Federation({"p0": [1.0, 2.0]}, 0.0, 1, BoundedLine(0.0, 1)).providers()

    with pytest.raises(ProtocolError, match="'p0'"):
        run(within(b"0.0", 5.0, name="q"), [Boaster(honest)])


def test_radius_neighbors_are_those_of_a_scan():
    words = ["bank", "blank", "tank", "thank", "ink"]
    search = FederatedNeighbors("edit").fit(words, parties=[0, 1, 0, 1, 0])

    distances, found = search.radius_neighbors(["bank", "zzz"], 1)

    assert [sorted(words[place] for place in places) for places in found] == [
        ["bank", "blank", "tank"],
        [],
    ]
    assert distances[0].tolist() == [0.0, 1.0, 1.0]
    assert search.query_records_[0].algorithm == "radius"


@pytest.mark.parametrize("radius", [-1.0, math.nan, math.inf])
def test_senseless_radii_are_refused(radius):
    search = FederatedNeighbors().fit(np.zeros((1, 2)))

    with pytest.raises(ValueError, match="expected a radius of 0 or more"):
        search.radius_neighbors([[0.0, 0.0]], radius)
