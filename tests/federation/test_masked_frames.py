import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fedneighbors.errors import AggregationError, FederationError, WireError
from fedneighbors.federation._loop import FrameTransport, run_rounds, sum_replies
from fedneighbors.federation._masked_sums import MaskedSums
from fedneighbors.federation._masking import OpenSum
from fedneighbors.federation._messages import decode, encode
from fedneighbors.federation._roles import Refusal, serve
from tests.federation.maskfleet import (
    REPLIES,
    REQUESTS,
    Wire,
    enroll,
    holders,
    masked_sum,
    one_sum,
)


def altered(frame, at, bit):
    raw = bytearray(frame)
    raw[at % len(raw)] ^= 1 << bit
    return bytes(raw)


@pytest.mark.parametrize("kind", REQUESTS)
@given(at=st.integers(0, 5000), bit=st.integers(0, 7), n_gone=st.integers(0, 1))
@settings(max_examples=12, deadline=None)
def test_altered_requests_get_a_refusal_and_change_no_state(kind, at, bit, n_gone):
    masked, roster = enroll(holders(6))
    lost = {REQUESTS[2]: {"p5"}} if n_gone else {}
    seen = []

    def first_altered(name, request):
        if type(request) is kind and name == "p1":
            answer = serve(masked[1], altered(encode(request), at, bit))
            seen.append(decode(answer, REPLIES))
        return request

    try:
        replies, _ = masked_sum(Wire(masked, lost, ask=first_altered), roster)
    except FederationError:
        assert not isinstance(seen[0], Refusal)  # the altered one was accepted as the real one
        return

    if kind is not OpenSum:  # an altered OpenSum may have opened another round
        assert all(isinstance(answer, Refusal) for answer in seen)
    left = [p for p in holders(6) if not (n_gone and p.name == "p5")]
    assert replies.total == sum_replies({p.name: p.answer(None) for p in left})


@pytest.mark.parametrize("step", range(5))
@given(at=st.integers(0, 5000), bit=st.integers(0, 7))
@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_altered_replies_are_errors_of_their_party(step, at, bit):
    masked, roster = enroll(holders(6))
    wire = Wire(masked, {REQUESTS[2]: {"p5"}})

    def exchange(frames):
        answers, missing = wire(frames)
        kinds = {type(request) for _, request in wire.requests}
        if len(kinds) == step + 1 and not done:
            done.append(True)
            answers["p1"] = altered(answers["p1"], at, bit)
        return answers, missing

    done, reason = [], ""
    names = tuple(f"p{k}" for k in range(6))
    try:
        outcome = run_rounds(one_sum(), FrameTransport(exchange, names), sums=MaskedSums(roster))
    except (AggregationError, WireError) as error:
        reason = str(error)
    if reason:
        assert "p1" in reason or "a sum does not fit" in reason
        return

    honest = sum_replies({p.name: p.answer(None) for p in holders(5)})
    assert step == 2  # any number is a valid masked number
    changed = np.append(
        outcome.result.total.items - honest.items, outcome.result.total.n - honest.n
    )
    assert np.count_nonzero(changed) == 1
