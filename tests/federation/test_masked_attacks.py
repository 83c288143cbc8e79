"""Attacks of a dishonest coordinator on one party's numbers, which the parties refuse."""

import hashlib
from dataclasses import replace

import pytest

from fedneighbors.errors import AggregationError
from fedneighbors.federation._masked_party import Opened
from fedneighbors.federation._masking import (
    Confirm,
    DealShares,
    MaskedInput,
    MaskInput,
    OpenSum,
    Revealed,
    Unmask,
    advert_digest,
    dealt_context,
    sum_context,
    survivors_digest,
)
from fedneighbors.federation._messages import encode
from fedneighbors.federation._roles import Refused
from fedneighbors.secure_sum._keys import Identity
from fedneighbors.secure_sum._masks import new_private, public_of
from tests.federation.maskfleet import (
    AbortError,
    NoisedRequest,
    ValuesRequest,
    Wire,
    alter_request,
    assert_fails,
    change_round,
    enroll,
    flip_bit,
    holders,
    masked_sum,
)

GONE = {MaskInput: {"p7"}}  # one of eight drops out, so that key shares are requested


def drop_survivor(request):
    return replace(request, survivors=request.survivors[:-1])


def swap_shares(request):
    """Replace p3's share by p2's."""
    return replace(request, sealed={**request.sealed, "p3": request.sealed["p2"]})


def without_p3(request):
    sealed = {k: v for k, v in request.sealed.items() if k != "p3"}
    return replace(request, members=tuple(sorted([*sealed, "p1"])), sealed=sealed)


def keep_five_members(request):
    sealed = {k: request.sealed[k] for k in ("p0", "p2", "p3", "p4")}
    return replace(request, members=("p0", "p1", "p2", "p3", "p4"), sealed=sealed)


@pytest.mark.parametrize(
    ("kind", "change", "match"),
    [
        (OpenSum, lambda x: replace(x, threshold=5), "expected a threshold of 6 to 8"),
        (
            OpenSum,
            lambda x: replace(x, names=tuple(n for n in x.names if n != "p1")),
            "this party is not among the parties of the round",
        ),
        (
            OpenSum,
            lambda x: replace(x, names=(*x.names, "px")),
            "a party is not in this party's roster .px",
        ),
        (OpenSum, lambda x: replace(x, request_name="Nothing"), "an unknown request .Nothing"),
        (
            DealShares,
            lambda x: replace(x, adverts=dict(sorted(x.adverts.items())[:5])),
            "fewer parties are left than the threshold",
        ),
        (
            DealShares,
            lambda x: replace(x, adverts={**x.adverts, "px": (b"x" * 32, b"y" * 32, b"z" * 64)}),
            "a party joined after the round was opened",
        ),
        (
            DealShares,
            lambda x: replace(x, adverts={k: v for k, v in x.adverts.items() if k != "p1"}),
            "the keys of this party were altered",
        ),
        (
            MaskInput,
            lambda x: replace(x, request=encode(NoisedRequest())),
            "the request is not the one that all parties agreed on",
        ),
        (MaskInput, swap_shares, "a share that is not signed by the enrolled party .p3"),
        (MaskInput, keep_five_members, "fewer parties are left than the threshold"),
        (
            MaskInput,
            lambda x: replace(x, members=x.members[1:]),
            "the sealed shares are not those of the other parties",
        ),
        (
            MaskInput,
            lambda x: replace(x, members=(*x.members, "px")),
            "not those that advertised keys",
        ),
        (Confirm, drop_survivor, "its confirmation is not signed with its key"),
        (Unmask, lambda x: replace(x, confirmations={}), "too few parties confirm the survivors"),
        (
            Unmask,
            lambda x: replace(x, survivors=x.survivors[:5]),
            "fewer parties are left than the threshold",
        ),
        (
            Unmask,
            lambda x: replace(x, survivors=tuple(n for n in x.survivors if n != "p1")),
            "the survivors are not parties of the sum",
        ),
        (Unmask, drop_survivor, "another list of survivors was confirmed before"),
        (
            Unmask,
            lambda x: replace(
                x, confirmations={k: flip_bit(v) for k, v in x.confirmations.items()}
            ),
            "a confirmation is not signed",
        ),
        *((k, change_round, "an unknown round") for k in (DealShares, MaskInput, Confirm, Unmask)),
    ],
)
def test_party_refuses_altered_requests(kind, change, match):
    wire = assert_fails(on_request=alter_request(kind, change), lost=GONE, match=match)

    assert wire.sent(Revealed, "p1") == []


def test_party_refuses_keys_forged_by_the_coordinator():
    """Check the attack that the roster prevents.

    With its own keys the coordinator would know the secret of every pair.
    """
    masked, roster = enroll(holders(4))
    fake = Identity.new()

    def foreign(request):
        (opening,) = wire.sent(OpenSum, "p1")
        keys = public_of(new_private()), public_of(new_private())
        signed = fake.sign(advert_digest(opening, "p2", *keys))
        return replace(request, adverts={**request.adverts, "p2": (*keys, signed)})

    wire = Wire(masked, on_request=alter_request(DealShares, foreign))
    with pytest.raises(AggregationError, match=r"not signed by the enrolled party .p2") as caught:
        masked_sum(wire, roster)

    assert caught.value.party == "p1"
    assert wire.sent(MaskedInput) == []


def test_party_refuses_keys_of_an_earlier_round():
    masked, roster = enroll(holders(4))
    earlier = Wire(masked)
    masked_sum(earlier, roster)
    old = earlier.sent(DealShares, "p1")[0].adverts["p2"]

    replay = alter_request(DealShares, lambda x: replace(x, adverts={**x.adverts, "p2": old}))
    with pytest.raises(AggregationError, match=r"not signed by the enrolled party .p2"):
        masked_sum(Wire(masked, on_request=replay), roster)


def test_finished_round_cannot_be_replayed():
    masked, roster = enroll(holders(4))
    wire = Wire(masked)
    masked_sum(wire, roster)

    requests = [request for name, request in wire.requests if name == "p1"]
    *steps, unmask = requests
    for request in steps:
        with pytest.raises(Refused, match="the round is over"):
            masked[1].answer(request)
    assert masked[1].answer(unmask) == wire.sent(Revealed, "p1")[0]  # nothing new
    altered = replace(unmask, survivors=unmask.survivors[:3])
    with pytest.raises(Refused, match="taken with another request"):
        masked[1].answer(altered)


@pytest.mark.parametrize("step", [OpenSum, DealShares, MaskInput, Confirm, Unmask])
def test_repeated_request_gets_the_same_bytes(step):
    masked, roster = enroll(holders(8))
    again = []

    def repeat(name, request):
        if type(request) is step and name == "p1":
            again.extend(encode(masked[1].answer(request)) for _ in range(2))
        return request

    wire = Wire(masked, GONE, on_request=repeat)
    replies, _ = masked_sum(wire, roster)

    assert replies.total.n == 5 * 7
    assert again[0] == again[1]
    assert again[0] == encode(wire.sent(step.reply, "p1")[0])


def change_request(request):
    change = {
        OpenSum: lambda: replace(request, threshold=request.threshold + 1),
        DealShares: lambda: replace(request, adverts=dict(sorted(request.adverts.items())[:-1])),
        MaskInput: lambda: without_p3(request),
        Unmask: lambda: replace(
            request, confirmations=dict(sorted(request.confirmations.items())[1:])
        ),
    }
    return change[type(request)]()


@pytest.mark.parametrize("step", [OpenSum, DealShares, MaskInput, Unmask])
def test_altered_second_request_for_a_step_is_refused(step):
    masked, roster = enroll(holders(8))
    refused = []

    def second(name, request):
        if type(request) is step and name == "p1":
            masked[1].answer(request)
            with pytest.raises(Refused, match="taken with another request") as caught:
                masked[1].answer(change_request(request))
            refused.append(caught.value)
        return request

    masked_sum(Wire(masked, GONE, on_request=second), roster)

    assert len(refused) == 1


def run_until_masked(n=8, lost=None):
    """Run a round until all masked numbers have arrived."""
    masked, roster = enroll(holders(n))
    wire = Wire(masked, lost)

    def stop(name, request):
        if isinstance(request, Confirm | Unmask):
            raise AbortError
        return request

    wire.on_request = stop
    with pytest.raises(AbortError):
        masked_sum(wire, roster)
    return masked, wire


def context_of(wire):
    opening = wire.sent(OpenSum)[0]
    dealt = dealt_context(opening, wire.sent(DealShares)[0].adverts)
    return sum_context(dealt, wire.sent(MaskInput)[0].members)


def test_split_survivor_lists_never_reveal_both_secrets():
    """Announce p0 as a survivor to one half and as a drop-out to the other."""
    masked, wire = run_until_masked()
    round_id = wire.sent(OpenSum)[0].round_id
    everybody = tuple(f"p{k}" for k in range(8))
    without = everybody[1:]
    confirmations, seeds, keys = {}, {}, {}

    for party in masked[1:4]:
        confirmations[party.name] = party.answer(Confirm(round_id, without)).signature
    for party in masked[4:]:
        seeds[party.name] = party.answer(Unmask(round_id, everybody, {})).seed_shares["p0"]
    for party in masked[1:4]:
        for request in (
            Unmask(round_id, everybody, {}),
            Unmask(round_id, without, confirmations),
        ):
            with pytest.raises(Refused) as caught:
                party.answer(request)
            assert caught.value.code.startswith("masked sum: ")
    for party in masked[4:]:
        with pytest.raises(Refused):
            party.answer(Confirm(round_id, without))
        with pytest.raises(Refused):
            party.answer(Unmask(round_id, without, confirmations))

    assert len(seeds) < 6  # the threshold: neither secret is known
    assert keys == {}


def test_party_confirms_only_one_list_of_survivors():
    masked, wire = run_until_masked()
    round_id = wire.sent(OpenSum)[0].round_id
    lists = [tuple(f"p{k}" for k in range(8) if k != gone) for gone in (6, 7)]

    masked[0].answer(Confirm(round_id, lists[0]))

    with pytest.raises(Refused, match="another list of survivors was confirmed before"):
        masked[0].answer(Confirm(round_id, lists[1]))


def test_confirmations_of_other_lists_or_dropouts_are_refused():
    masked, wire = run_until_masked()
    round_id = wire.sent(OpenSum)[0].round_id
    left = tuple(f"p{k}" for k in range(7))
    other = tuple(f"p{k}" for k in range(8))
    foreign = {p.name: p.answer(Confirm(round_id, other)).signature for p in masked[1:7]}
    gone = masked[7]._identity.sign(survivors_digest(context_of(wire), left))

    with pytest.raises(Refused, match="not signed by a survivor"):
        masked[0].answer(Unmask(round_id, left, foreign))
    with pytest.raises(Refused, match="not signed by a survivor"):
        masked[0].answer(Unmask(round_id, left, {"p7": gone}))


def test_party_without_masked_input_reveals_nothing():
    masked, wire = run_until_masked(lost={MaskInput: {"p7"}})
    round_id = wire.sent(OpenSum)[0].round_id

    with pytest.raises(Refused, match="an unknown round"):
        masked[7].answer(Unmask(round_id, tuple(f"p{k}" for k in range(8)), {}))


def test_digest_of_the_request_is_that_of_its_frame():
    masked, roster = enroll(holders(3))
    wire = Wire(masked)

    masked_sum(wire, roster)

    wanted = hashlib.sha256(encode(ValuesRequest())).digest()
    assert {x.request_digest for x in wire.sent(OpenSum)} == {wanted}
    assert {x.request for x in wire.sent(MaskInput)} == {encode(ValuesRequest())}


def test_repr_hides_secrets():
    opened = Opened(b"r", b"secret-one", b"secret-two", b"secret-three", b"reply")

    assert "secret-" not in repr(opened)
    assert "private" not in repr(Identity(bytes(32)))


def test_party_reveals_only_one_secret_of_each_party():
    masked, roster = enroll(holders(8))
    wire = Wire(masked, GONE)

    masked_sum(wire, roster)

    alter_reply = [(set(x.seed_shares), set(x.key_shares)) for x in wire.sent(Revealed)]
    assert alter_reply == [({f"p{k}" for k in range(7)}, {"p7"})] * 7
