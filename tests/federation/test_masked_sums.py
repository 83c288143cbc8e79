import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedneighbors.errors import AggregationError, PartyRefused, ProtocolError
from fedneighbors.federation import _inprocess as inprocess
from fedneighbors.federation._loop import FrameTransport, gather, run_rounds, sum_replies, total
from fedneighbors.federation._masked_sums import MaskedSums
from fedneighbors.federation._masking import (
    Confirm,
    DealShares,
    MaskedInput,
    MaskInput,
    OpenSum,
    Unmask,
)
from fedneighbors.federation._roles import MaskedRound, Refused
from fedneighbors.secure_sum._shares import default_threshold
from tests.federation.masked_parties import (
    NoisedRequest,
    OneByOneRequest,
    ValueParty,
    Values,
    ValuesRequest,
    Wire,
    enroll,
    make_parties,
    run_masked_sum,
)
from tests.federation.parties import Counter, NameReply, count
from tests.seeds import cases

STEPS = (OpenSum, DealShares, MaskInput, Confirm, Unmask)


@st.composite
def federations(draw):
    """Draw parties with values, and the parties that do not answer at each step."""
    n = draw(st.integers(3, 8))
    dtype = np.dtype(draw(st.sampled_from(["u1", "i1", "u2", "i2", "u4", "i4", "u8", "i8"])))
    length = draw(st.integers(0, 40))
    limits = np.iinfo(dtype)
    low, high = int(limits.min) // (2 * n), int(limits.max) // (2 * n)
    numbers = st.lists(st.integers(low, high), min_size=length, max_size=length)
    parties = [ValueParty(f"p{k}", np.array(draw(numbers), dtype)) for k in range(n)]
    last_steps = draw(st.lists(st.sampled_from(STEPS), max_size=n))
    silent = {
        step: {f"p{k}" for k, last in enumerate(last_steps) if last is step} for step in STEPS
    }
    return parties, silent


@given(federations())
@settings(max_examples=cases(120), deadline=None)
def test_sum_is_that_of_the_survivors_or_is_refused(case):
    parties, silent = case
    masked, roster = enroll(parties)
    not_in_sum = set().union(*(silent[step] for step in (OpenSum, DealShares, MaskInput)))
    missing = not_in_sum | silent[Unmask] | (silent[Confirm] if silent[MaskInput] else set())
    wire = Wire(masked, silent)

    if len(parties) - len(missing) < default_threshold(len(parties)):
        with pytest.raises(AggregationError, match=r"of \d parties are left .* Nothing was unm"):
            run_masked_sum(wire, roster)
        return
    replies, _ = run_masked_sum(wire, roster)

    summed = {p.name: p.answer(ValuesRequest()) for p in parties if p.name not in not_in_sum}
    assert replies.total == sum_replies(summed)
    assert set(replies.missing) == not_in_sum
    assert replies.each == {}


@given(st.integers(3, 8), st.data())
@settings(max_examples=40, deadline=None)
def test_every_allowed_threshold_gives_the_survivors_sum(n, data):
    threshold = data.draw(st.integers(max(3, -(-2 * n // 3)), n))
    masked, roster = enroll(make_parties(n))
    drop_outs = {f"p{k}" for k in range(n - threshold)}

    replies, _ = run_masked_sum(Wire(masked, {MaskInput: drop_outs}), roster, threshold=threshold)

    survivors = [p for p in make_parties(n) if p.name not in drop_outs]
    assert replies.total == sum_replies({p.name: p.answer(None) for p in survivors})


def test_sum_without_drop_outs_needs_no_confirmation():
    masked, roster = enroll(make_parties(4))

    _, rounds = run_masked_sum(Wire(masked), roster)

    steps = ["OpenSum", "DealShares", "MaskInput", "Unmask"]
    assert [r.request for r in rounds] == [f"ValuesRequest: {step}" for step in steps]
    assert {r.reduce for r in rounds} == {"masked"}
    assert [r.index for r in rounds] == [0, 1, 2, 3]
    assert all(len(r.upload_bytes) == 4 and min(r.upload_bytes.values()) > 0 for r in rounds)


def test_drop_out_after_the_masked_input_is_in_the_sum():
    masked, roster = enroll(make_parties(6))

    replies, _ = run_masked_sum(Wire(masked, {Unmask: {"p5"}}), roster)

    assert replies.total == sum_replies({p.name: p.answer(None) for p in make_parties(6)})
    assert replies.missing == {}


@pytest.mark.parametrize("step", [OpenSum, DealShares, MaskInput, Unmask])
def test_too_few_parties_raise_and_name_the_missing(step):
    masked, roster = enroll(make_parties(5))

    with pytest.raises(AggregationError, match=r"3 of 5 .* at least 4 .*'p1' \(no answer\), 'p2'"):
        run_masked_sum(Wire(masked, {step: {"p1", "p2"}}), roster)


@pytest.mark.parametrize("n", [1, 2])
def test_exact_sums_of_fewer_than_three_parties_are_refused(n):
    masked, roster = enroll(make_parties(n))
    wire = Wire(masked)

    with pytest.raises(AggregationError, match="without noise needs 3 to 128 parties"):
        run_masked_sum(wire, roster)

    assert wire.requests == []


def test_parties_themselves_refuse_an_exact_sum_of_two():
    masked, roster = enroll(make_parties(4))

    def open_with_two(name, request):
        if type(request) is OpenSum:
            return OpenSum(
                request.round_id, ("p0", "p1"), 2, request.request_name, request.request_digest
            )
        return request

    with pytest.raises(AggregationError, match=r"'p0': it refused a masked sum.*needs 3") as caught:
        run_masked_sum(Wire(masked, on_request=open_with_two), roster)

    assert caught.value.party == "p0"


@pytest.mark.parametrize(("n", "threshold"), [(3, 2), (4, 2), (6, 3), (8, 5), (8, 9)])
def test_thresholds_out_of_range_are_refused(n, threshold):
    masked, roster = enroll(make_parties(n))

    with pytest.raises(AggregationError, match="expected a threshold of"):
        run_masked_sum(Wire(masked), roster, threshold=threshold)


def test_two_parties_may_sum_noised_replies():
    parties = make_parties(2)
    masked, roster = enroll(parties)

    replies, _ = run_masked_sum(Wire(masked), roster, request=NoisedRequest())

    assert replies.total.items.tolist() == (parties[0].items + parties[1].items).tolist()
    (masked_round,) = parties[0].rounds
    assert parties[1].rounds == [masked_round]
    assert masked_round == MaskedRound(masked_round.id, 2, 2, 2)
    assert len(masked_round.id) == 64


def test_single_party_is_refused_even_with_noise():
    masked, roster = enroll(make_parties(1))

    with pytest.raises(AggregationError, match="with noise needs 2"):
        run_masked_sum(Wire(masked), roster, request=NoisedRequest())


def test_every_masked_sum_has_a_new_id():
    parties = make_parties(3)
    masked, roster = enroll(parties)

    for _ in range(3):
        run_masked_sum(Wire(masked), roster, request=NoisedRequest())

    assert len({masked_round.id for masked_round in parties[0].rounds}) == 3


def test_masked_only_request_is_refused_unmasked():
    plain = make_parties(3)

    for ask in (gather(NoisedRequest()), total(NoisedRequest())):
        with pytest.raises(PartyRefused, match=r"sent only as part of a masked sum .NoisedRequest"):
            run_rounds(
                (x for x in [ask]), FrameTransport(Wire(plain), tuple(p.name for p in plain))
            )

    assert [party.rounds for party in plain] == [[], [], []]


@pytest.mark.parametrize("ask", [gather, total])
def test_masked_party_refuses_plain_sums(ask):
    masked, _ = enroll(make_parties(3))

    with pytest.raises(PartyRefused, match=r"sent only as part of a masked sum .ValuesRequest"):
        run_rounds(
            (x for x in [ask(ValuesRequest())]),
            FrameTransport(Wire(masked), ("p0", "p1", "p2")),
        )


def test_one_by_one_request_is_answered_unmasked():
    masked, _ = enroll(make_parties(3))

    def one_by_one():
        return (yield gather(OneByOneRequest()))

    outcome = run_rounds(one_by_one(), FrameTransport(Wire(masked), ("p0", "p1", "p2")))

    assert sorted(outcome.result.each) == ["p0", "p1", "p2"]


def test_parties_of_a_sum_must_get_the_same_request():
    masked, roster = enroll(make_parties(3))
    wire = Wire(masked)
    requests = {"p0": ValuesRequest(0), "p1": ValuesRequest(0), "p2": ValuesRequest(1)}

    with pytest.raises(ProtocolError, match="must get the same request"):
        run_masked_sum(wire, roster, request=requests)

    assert wire.requests == []


def test_masked_sum_over_a_subset_of_the_parties():
    masked, roster = enroll(make_parties(5))
    requests = {name: ValuesRequest() for name in ("p0", "p1", "p3", "p4")}

    replies, rounds = run_masked_sum(Wire(masked), roster, request=requests)

    assert replies.total == sum_replies(
        {p.name: p.answer(None) for p in make_parties(5) if p.name in requests}
    )
    assert set(rounds[0].download_bytes) == set(requests)


def test_noised_sum_over_a_small_subset_of_the_parties():
    parties = make_parties(5)
    masked, roster = enroll(parties)
    requests = {name: NoisedRequest() for name in ("p3", "p4")}

    replies, _ = run_masked_sum(Wire(masked), roster, request=requests)

    assert replies.total.items.tolist() == (parties[3].items + parties[4].items).tolist()


def test_unenrolled_party_is_named():
    masked, roster = enroll(make_parties(4))
    wire = Wire([*masked, ValueParty("eve", [1])])

    with pytest.raises(AggregationError, match="party 'eve': its key is not in the roster"):
        run_masked_sum(wire, roster)


def test_modulus_is_the_smallest_sufficient_one():
    for dtype, modulus in (("u1", "<u4"), ("i4", "<u4"), ("u4", "<u4"), ("i8", "<u8")):
        masked, roster = enroll(make_parties(3, dtype))
        wire = Wire(masked)

        run_masked_sum(wire, roster, request=NoisedRequest())

        assert {x.cells.dtype.str for x in wire.get_messages(MaskedInput)} == {modulus}


@pytest.mark.parametrize(("dtype", "bits"), [("u4", 31), ("i4", 31), ("u8", 63), ("i8", 63)])
def test_party_refuses_numbers_whose_sum_could_wrap(dtype, bits):
    largest = ((1 << bits) - 1) // 4  # n |x| < modulus / 2
    parties = [ValueParty(f"p{k}", np.array([largest], dtype)) for k in range(4)]
    masked, roster = enroll(parties)
    replies, _ = run_masked_sum(Wire(masked), roster, request=NoisedRequest())
    assert int(replies.total.items[0]) == 4 * largest

    parties[2].items = np.array([largest + 1], dtype)
    masked, roster = enroll(parties)

    with pytest.raises(AggregationError, match=r"'p2': .*a number is too large") as caught:
        run_masked_sum(Wire(masked), roster, request=NoisedRequest())
    assert caught.value.party == "p2"
    assert str(largest + 1) not in str(caught.value)


def test_sum_beyond_its_dtype_is_an_error():
    masked, roster = enroll([ValueParty(f"p{k}", np.array([100], "u1")) for k in range(3)])

    with pytest.raises(AggregationError, match="a sum does not fit uint8"):
        run_masked_sum(Wire(masked), roster, request=NoisedRequest())


@pytest.mark.parametrize("items", [np.zeros(4, "u4"), np.zeros(5, "u2"), np.zeros((5, 1), "u4")])
def test_party_with_another_shape_or_dtype_is_named(items):
    parties = make_parties(4)
    parties[1].items = items
    masked, roster = enroll(parties)

    with pytest.raises(AggregationError, match=r"party 'p1': its layout is .* others sent"):
        run_masked_sum(Wire(masked), roster, request=NoisedRequest())


class RefusingParty(ValueParty):
    def answer(self, request):
        raise Refused("a column is missing", "age")


def test_refusal_of_the_wrapped_party_propagates():
    masked, roster = enroll([*make_parties(3), RefusingParty("bob", [1])])

    with pytest.raises(PartyRefused, match=r"'bob' refused: a column is missing \(age\)"):
        run_masked_sum(Wire(masked), roster)


class NameParty(ValueParty):
    def answer(self, request):
        return NameReply("not a number")


def test_non_integer_reply_fails_at_the_party():
    masked, roster = enroll([*make_parties(3), NameParty("bob", [1])])

    with pytest.raises(
        ProtocolError, match=r"NameReply\.name is not of integers, cannot be summed"
    ):
        run_masked_sum(Wire(masked), roster)


@pytest.mark.parametrize("workers", ["threads", "processes"])
def test_in_process_masked_sums_equal_plain_sums(workers):
    parties = [Counter(name, tuple(range(k))) for k, name in enumerate(("ann", "bob", "cyd"), 2)]
    plain = inprocess.run(count(3), parties)

    masked = inprocess.run(count(3), parties, workers=workers, sums="masked", n_workers=2)

    assert masked.result == plain.result
    assert [r.reduce for r in masked.rounds] == ["gather", *["masked"] * 4]


def test_sums_and_thresholds_of_the_runtime_are_checked():
    parties = [Counter(name, (1,)) for name in "abc"]

    with pytest.raises(ValueError, match="expected sums 'plain' or 'masked', got 'secret'"):
        inprocess.run(count(3), parties, sums="secret")
    with pytest.raises(ValueError, match="threshold needs masked sums"):
        inprocess.run(count(3), parties, threshold=2)
    with pytest.raises(AggregationError, match="expected a threshold of 3 to 3"):
        inprocess.run(count(3), parties, sums="masked", threshold=2)


def test_several_sums_in_one_run():
    masked, roster = enroll(make_parties(3))

    def request_three_sums():
        first = yield total(ValuesRequest(0))
        second = yield total(ValuesRequest(1))
        third = yield total(ValuesRequest(0))
        return [reply.total for reply in (first, second, third)]

    outcome = run_rounds(
        request_three_sums(),
        FrameTransport(Wire(masked), ("p0", "p1", "p2")),
        sums=MaskedSums(roster),
    )

    assert outcome.result == [sum_replies({p.name: p.answer(None) for p in make_parties(3)})] * 3
    assert [r.index for r in outcome.rounds] == list(range(12))
    assert isinstance(outcome.result[0], Values)


def test_contribute_receives_party_counts_and_threshold():
    parties = make_parties(8)
    masked, roster = enroll(parties)

    run_masked_sum(Wire(masked, {OpenSum: {"p7"}}), roster, request=NoisedRequest())

    rounds = [masked_round for party in parties for masked_round in party.rounds]
    assert {(x.n_parties, x.n_invited, x.threshold) for x in rounds} == {(7, 8, 6)}
