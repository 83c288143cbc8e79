import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fedneighbors.errors import AggregationError, FederationError, WireError
from fedneighbors.federation._loop import FrameTransport, run_rounds, sum_replies
from fedneighbors.federation._masked_sums import MaskedSums
from fedneighbors.federation._masking import MaskInput, OpenSum
from fedneighbors.federation._messages import decode, encode
from fedneighbors.federation._roles import Refusal, serve
from tests.federation.masked_parties import (
    REPLIES,
    REQUESTS,
    Wire,
    enroll,
    make_parties,
    request_sum,
    run_masked_sum,
)


def flip_bit_at(frame, position, bit):
    content = bytearray(frame)
    content[position % len(content)] ^= 1 << bit
    return bytes(content)


@pytest.mark.parametrize("kind", REQUESTS)
@given(position=st.integers(0, 5000), bit=st.integers(0, 7), p5_silent=st.booleans())
@settings(max_examples=12, deadline=None)
def test_altered_request_does_not_change_a_partys_state(kind, position, bit, p5_silent):
    masked, roster = enroll(make_parties(6))
    silent = {MaskInput: {"p5"}} if p5_silent else {}
    answers = []

    def send_altered_first(name, request):
        if type(request) is kind and name == "p1":
            answer = serve(masked[1], flip_bit_at(encode(request), position, bit))
            answers.append(decode(answer, REPLIES))
        return request

    try:
        replies, _ = run_masked_sum(Wire(masked, silent, on_request=send_altered_first), roster)
    except FederationError:
        assert not isinstance(answers[0], Refusal)  # the altered request was accepted
        return

    if kind is not OpenSum:  # an altered OpenSum may have opened another round
        assert all(isinstance(answer, Refusal) for answer in answers)
    survivors = make_parties(5 if p5_silent else 6)
    assert replies.total == sum_replies({p.name: p.answer(None) for p in survivors})


@pytest.mark.parametrize("step", range(5))
@given(position=st.integers(0, 5000), bit=st.integers(0, 7))
@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_altered_reply_is_an_error_of_its_party(step, position, bit):
    masked, roster = enroll(make_parties(6))
    wire = Wire(masked, {MaskInput: {"p5"}})

    def exchange(frames):
        answers, missing = wire(frames)
        kinds = {type(request) for _, request in wire.requests}
        if len(kinds) == step + 1 and not altered:
            altered.append("p1")
            answers["p1"] = flip_bit_at(answers["p1"], position, bit)
        return answers, missing

    altered, reason = [], ""
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

    honest = sum_replies({p.name: p.answer(None) for p in make_parties(5)})
    assert step == 2  # MaskedInput: any number is a valid masked number
    differences = np.append(
        outcome.result.total.items - honest.items, outcome.result.total.n - honest.n
    )
    assert np.count_nonzero(differences) == 1
