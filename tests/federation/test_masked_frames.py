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
    request_sum,
)


def flip_bit_at(frame, at, bit):
    raw = bytearray(frame)
    raw[at % len(raw)] ^= 1 << bit
    return bytes(raw)


@pytest.mark.parametrize("kind", REQUESTS)
@given(at=st.integers(0, 5000), bit=st.integers(0, 7), n_gone=st.integers(0, 1))
@settings(max_examples=12, deadline=None)
def test_altered_request_does_not_change_a_partys_state(kind, at, bit, n_gone):
    masked, roster = enroll(holders(6))
    lost = {REQUESTS[2]: {"p5"}} if n_gone else {}
    seen = []

    def flip_in_first(name, request):
        if type(request) is kind and name == "p1":
            answer = serve(masked[1], flip_bit_at(encode(request), at, bit))
            seen.append(decode(answer, REPLIES))
        return request

    try:
        replies, _ = masked_sum(Wire(masked, lost, on_request=flip_in_first), roster)
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
def test_altered_reply_is_an_error_of_its_party(step, at, bit):
    masked, roster = enroll(holders(6))
    wire = Wire(masked, {REQUESTS[2]: {"p5"}})

    def exchange(frames):
        answers, missing = wire(frames)
        kinds = {type(request) for _, request in wire.requests}
        if len(kinds) == step + 1 and not done:
            done.append(True)
            answers["p1"] = flip_bit_at(answers["p1"], at, bit)
        return answers, missing

    done, reason = [], ""
    names = tuple(f"p{k}" for k in range(6))
    try:
        outcome = run_rounds(
            request_sum(), FrameTransport(exchange, names), sums=MaskedSums(roster)
        )
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
