"""Attacks of a dishonest coordinator on one party's numbers, which the parties refuse."""

import hashlib
from dataclasses import replace

import pytest

from fedneighbors.errors import AggregationError
from fedneighbors.federation._masked_party import OpenState
from fedneighbors.federation._masking import (
    Confirm,
    DealShares,
    MaskedInput,
    MaskInput,
    OpenSum,
    Revealed,
    Unmask,
    advert_digest,
    keys_context,
    sum_context,
    survivors_digest,
)
from fedneighbors.federation._messages import encode
from fedneighbors.federation._roles import Refused
from fedneighbors.secure_sum._keys import Identity
from fedneighbors.secure_sum._masks import derive_public_key, generate_secret
from tests.federation.masked_parties import (
    AbortError,
    NoisedRequest,
    ValuesRequest,
    Wire,
    alter_request,
    assert_fails,
    change_round,
    enroll,
    flip_bit,
    make_parties,
    run_masked_sum,
)

P7_SILENT = {MaskInput: {"p7"}}  # one of eight drops out, so that key shares are requested


def drop_survivor(request):
    return replace(request, survivors=request.survivors[:-1])


def swap_shares(request):
    """Replace p3's share by p2's."""
    return replace(request, sealed={**request.sealed, "p3": request.sealed["p2"]})


def drop_p3(request):
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
        (OpenSum, lambda x: replace(x, request_name="Unknown"), "an unknown request .Unknown"),
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
    wire = assert_fails(on_request=alter_request(kind, change), silent=P7_SILENT, match=match)

    assert wire.get_messages(Revealed, "p1") == []


def test_party_refuses_keys_forged_by_the_coordinator():
    """The roster prevents this attack.

    With keys of its own in place of p2's, the coordinator would know p2's shared streams.
    """
    masked, roster = enroll(make_parties(4))
    forged = Identity.new()

    def replace_keys(request):
        (opening,) = wire.get_messages(OpenSum, "p1")
        keys = derive_public_key(generate_secret()), derive_public_key(generate_secret())
        signature = forged.sign(advert_digest(opening, "p2", *keys))
        return replace(request, adverts={**request.adverts, "p2": (*keys, signature)})

    wire = Wire(masked, on_request=alter_request(DealShares, replace_keys))
    with pytest.raises(AggregationError, match=r"not signed by the enrolled party .p2") as caught:
        run_masked_sum(wire, roster)

    assert caught.value.party == "p1"
    assert wire.get_messages(MaskedInput) == []


def test_party_refuses_keys_of_an_earlier_round():
    masked, roster = enroll(make_parties(4))
    earlier = Wire(masked)
    run_masked_sum(earlier, roster)
    old_entry = earlier.get_messages(DealShares, "p1")[0].adverts["p2"]

    replay = alter_request(DealShares, lambda x: replace(x, adverts={**x.adverts, "p2": old_entry}))
    with pytest.raises(AggregationError, match=r"not signed by the enrolled party .p2"):
        run_masked_sum(Wire(masked, on_request=replay), roster)


def test_finished_round_cannot_be_replayed():
    masked, roster = enroll(make_parties(4))
    wire = Wire(masked)
    run_masked_sum(wire, roster)

    requests = [request for name, request in wire.requests if name == "p1"]
    *steps, unmask = requests
    for request in steps:
        with pytest.raises(Refused, match="the round is over"):
            masked[1].answer(request)
    assert masked[1].answer(unmask) == wire.get_messages(Revealed, "p1")[0]  # nothing new
    altered = replace(unmask, survivors=unmask.survivors[:3])
    with pytest.raises(Refused, match="taken with another request"):
        masked[1].answer(altered)


@pytest.mark.parametrize("step", [OpenSum, DealShares, MaskInput, Confirm, Unmask])
def test_repeated_request_gets_the_same_bytes(step):
    masked, roster = enroll(make_parties(8))
    repeated = []

    def repeat(name, request):
        if type(request) is step and name == "p1":
            repeated.extend(encode(masked[1].answer(request)) for _ in range(2))
        return request

    wire = Wire(masked, P7_SILENT, on_request=repeat)
    replies, _ = run_masked_sum(wire, roster)

    assert replies.total.n == 5 * 7
    assert repeated[0] == repeated[1]
    assert repeated[0] == encode(wire.get_messages(step.reply, "p1")[0])


def change_request(request):
    changes = {
        OpenSum: lambda: replace(request, threshold=request.threshold + 1),
        DealShares: lambda: replace(request, adverts=dict(sorted(request.adverts.items())[:-1])),
        MaskInput: lambda: drop_p3(request),
        Unmask: lambda: replace(
            request, confirmations=dict(sorted(request.confirmations.items())[1:])
        ),
    }
    return changes[type(request)]()


@pytest.mark.parametrize("step", [OpenSum, DealShares, MaskInput, Unmask])
def test_altered_second_request_for_a_step_is_refused(step):
    masked, roster = enroll(make_parties(8))
    refusals = []

    def send_altered_second(name, request):
        if type(request) is step and name == "p1":
            masked[1].answer(request)
            with pytest.raises(Refused, match="taken with another request") as caught:
                masked[1].answer(change_request(request))
            refusals.append(caught.value)
        return request

    run_masked_sum(Wire(masked, P7_SILENT, on_request=send_altered_second), roster)

    assert len(refusals) == 1


def run_until_masked(n=8, silent=None):
    """Run a sum until all masked numbers have arrived; return the parties and the wire."""
    masked, roster = enroll(make_parties(n))
    wire = Wire(masked, silent)

    def abort(name, request):
        if isinstance(request, Confirm | Unmask):
            raise AbortError
        return request

    wire.on_request = abort
    with pytest.raises(AbortError):
        run_masked_sum(wire, roster)
    return masked, wire


def context_of(wire):
    opening = wire.get_messages(OpenSum)[0]
    keys_digest = keys_context(opening, wire.get_messages(DealShares)[0].adverts)
    return sum_context(keys_digest, wire.get_messages(MaskInput)[0].members)


def test_differing_survivor_lists_never_reveal_both_secrets():
    """Announce p0 as a drop-out to p1, p2 and p3, and as a survivor to the other parties."""
    masked, wire = run_until_masked()
    round_id = wire.get_messages(OpenSum)[0].round_id
    with_p0 = tuple(f"p{k}" for k in range(8))
    without_p0 = with_p0[1:]
    confirmations, seed_shares = {}, {}

    for party in masked[1:4]:
        confirmations[party.name] = party.answer(Confirm(round_id, without_p0)).signature
    for party in masked[4:]:
        seed_shares[party.name] = party.answer(Unmask(round_id, with_p0, {})).seed_shares["p0"]
    for party in masked[1:4]:
        for request in (
            Unmask(round_id, with_p0, {}),
            Unmask(round_id, without_p0, confirmations),
        ):
            with pytest.raises(Refused) as caught:
                party.answer(request)
            assert caught.value.code.startswith("masked sum: ")
    for party in masked[4:]:
        with pytest.raises(Refused):
            party.answer(Confirm(round_id, without_p0))
        with pytest.raises(Refused):
            party.answer(Unmask(round_id, without_p0, confirmations))

    assert len(seed_shares) < 6  # the threshold; no share of the key was revealed


def test_party_confirms_only_one_list_of_survivors():
    masked, wire = run_until_masked()
    round_id = wire.get_messages(OpenSum)[0].round_id
    lists = [tuple(f"p{k}" for k in range(8) if k != drop_out) for drop_out in (6, 7)]

    masked[0].answer(Confirm(round_id, lists[0]))

    with pytest.raises(Refused, match="another list of survivors was confirmed before"):
        masked[0].answer(Confirm(round_id, lists[1]))


def test_confirmations_of_other_lists_or_dropouts_are_refused():
    masked, wire = run_until_masked()
    round_id = wire.get_messages(OpenSum)[0].round_id
    survivors = tuple(f"p{k}" for k in range(7))
    everyone = tuple(f"p{k}" for k in range(8))
    other_list_signatures = {
        p.name: p.answer(Confirm(round_id, everyone)).signature for p in masked[1:7]
    }
    drop_out_signature = masked[7]._identity.sign(survivors_digest(context_of(wire), survivors))

    with pytest.raises(Refused, match="not signed by a survivor"):
        masked[0].answer(Unmask(round_id, survivors, other_list_signatures))
    with pytest.raises(Refused, match="not signed by a survivor"):
        masked[0].answer(Unmask(round_id, survivors, {"p7": drop_out_signature}))


def test_party_without_masked_input_reveals_nothing():
    masked, wire = run_until_masked(silent={MaskInput: {"p7"}})
    round_id = wire.get_messages(OpenSum)[0].round_id

    with pytest.raises(Refused, match="an unknown round"):
        masked[7].answer(Unmask(round_id, tuple(f"p{k}" for k in range(8)), {}))


def test_digest_of_the_request_is_that_of_its_frame():
    masked, roster = enroll(make_parties(3))
    wire = Wire(masked)

    run_masked_sum(wire, roster)

    expected = hashlib.sha256(encode(ValuesRequest())).digest()
    assert {x.request_digest for x in wire.get_messages(OpenSum)} == {expected}
    assert {x.request for x in wire.get_messages(MaskInput)} == {encode(ValuesRequest())}


def test_repr_hides_secrets():
    opened = OpenState(b"r", b"secret-one", b"secret-two", b"secret-three", b"reply")

    assert "secret-" not in repr(opened)
    assert "private" not in repr(Identity(bytes(32)))


def test_party_reveals_only_one_secret_of_each_party():
    masked, roster = enroll(make_parties(8))
    wire = Wire(masked, P7_SILENT)

    run_masked_sum(wire, roster)

    revealed = [(set(x.seed_shares), set(x.key_shares)) for x in wire.get_messages(Revealed)]
    assert revealed == [({f"p{k}" for k in range(7)}, {"p7"})] * 7
