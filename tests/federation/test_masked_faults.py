"""Faulty messages of a party, and the errors that name it."""

from dataclasses import replace

import pytest

from fedneighbors.errors import AggregationError, WireError
from fedneighbors.federation._loop import sum_replies
from fedneighbors.federation._masked_party import OpenState
from fedneighbors.federation._masking import (
    Advert,
    Confirmation,
    MaskedInput,
    MaskInput,
    OpenSum,
    Revealed,
    SealedShares,
    advert_digest,
    sealed_digest,
)
from fedneighbors.secure_sum._keys import Identity, Roster
from fedneighbors.secure_sum._masks import generate_secret
from tests.federation.masked_parties import (
    Wire,
    alter_reply,
    assert_fails,
    change_round,
    enroll,
    flip_bit,
    make_parties,
    run_masked_sum,
)

P7_SILENT = {MaskInput: {"p7"}}  # one of eight drops out, so that key shares are requested


@pytest.mark.parametrize("kind", [Advert, SealedShares, MaskedInput, Confirmation, Revealed])
def test_party_answering_for_another_round_is_named(kind):
    assert_fails(
        on_reply=alter_reply(kind, change_round),
        silent=P7_SILENT,
        match="'p1': its reply is of another round or step",
    )


def test_party_replaying_a_reply_of_an_earlier_round_is_named():
    masked, roster = enroll(make_parties(4))
    earlier = Wire(masked)
    run_masked_sum(earlier, roster)
    (old_reply,) = earlier.get_messages(MaskedInput, "p1")

    with pytest.raises(AggregationError, match="'p1': its reply is of another round or step"):
        run_masked_sum(Wire(masked, on_reply=alter_reply(MaskedInput, lambda _: old_reply)), roster)


def test_party_answering_the_wrong_step_is_named():
    masked, roster = enroll(make_parties(4))
    first_reply = {}

    def repeat_advert(name, reply):
        if isinstance(reply, Advert):
            first_reply[name] = reply
        return first_reply[name] if name == "p1" and isinstance(reply, SealedShares) else reply

    with pytest.raises(WireError, match="party 'p1': unexpected message 'Advert'"):
        run_masked_sum(Wire(masked, on_reply=repeat_advert), roster)


@pytest.mark.parametrize("field", ["mask_key", "seal_key", "signature"])
def test_party_with_unsigned_keys_is_named(field):
    change = alter_reply(Advert, lambda x: replace(x, **{field: flip_bit(getattr(x, field))}))

    assert_fails(on_reply=change, match="'p1': its keys are not signed with its enrolled key")


def test_party_with_a_foreign_identity_is_named():
    masked, roster = enroll(make_parties(4))
    others, other_roster = enroll(make_parties(4))
    masked[1] = others[1]  # has another identity and a matching roster

    wire = Wire(masked)
    with pytest.raises(AggregationError, match="not signed with its enrolled key") as caught:
        run_masked_sum(wire, roster)

    assert caught.value.party == "p1"
    assert other_roster.keys["p1"] != roster.keys["p1"]


def test_party_copying_the_keys_of_another_is_named():
    masked, roster = enroll(make_parties(4))
    identity = Identity.new()
    roster = Roster({**roster.keys, "p1": identity.public})
    copied = {}

    def copy_keys(name, reply):
        if isinstance(reply, Advert) and name == "p0":
            copied["keys"] = reply.mask_key, reply.seal_key
        if isinstance(reply, Advert) and name == "p1":
            (opening,) = wire.get_messages(OpenSum, "p1")
            to_sign = advert_digest(opening, "p1", *copied["keys"])
            return Advert(reply.round_id, *copied["keys"], identity.sign(to_sign))
        return reply

    wire = Wire(masked, on_reply=copy_keys)
    with pytest.raises(AggregationError, match=r"'p1': it advertised a key .* before"):
        run_masked_sum(wire, roster)


def drop_share(reply):
    return replace(reply, sealed={k: v for k, v in reply.sealed.items() if k != "p2"})


def alter_share(position):
    def change(reply):
        entry = list(reply.sealed["p2"])
        entry[position] = flip_bit(entry[position])
        return replace(reply, sealed={**reply.sealed, "p2": tuple(entry)})

    return change


@pytest.mark.parametrize(
    ("kind", "change", "match"),
    [
        (SealedShares, drop_share, "'p1': it did not deal one share to each party"),
        (
            SealedShares,
            alter_share(0),
            "'p1': one of its shares is not signed with its enrolled key",
        ),
        (
            SealedShares,
            alter_share(1),
            "'p1': one of its shares is not signed with its enrolled key",
        ),
        (
            SealedShares,
            alter_share(3),
            "'p1': one of its shares is not signed with its enrolled key",
        ),
        (
            SealedShares,
            lambda x: replace(x, seed_commitment=flip_bit(x.seed_commitment)),
            "'p1': its shares do not combine to its seed",
        ),
        (
            Confirmation,
            lambda x: replace(x, signature=flip_bit(x.signature)),
            "'p1': its confirmation is not signed",
        ),
        (
            Revealed,
            lambda x: replace(x, key_shares={}),
            "'p1': it revealed other shares than it was asked for",
        ),
        (
            Revealed,
            lambda x: replace(x, seed_shares={**x.seed_shares, "p3": bytes(32)}),
            "'p1': it revealed a false share of 'p3'",
        ),
        (
            Revealed,
            lambda x: replace(x, key_shares={"p7": bytes(32)}),
            "'p1': it revealed a false share of 'p7'",
        ),
    ],
)
def test_party_with_a_false_message_is_named(kind, change, match):
    assert_fails(on_reply=alter_reply(kind, change), silent=P7_SILENT, match=match)


def test_altered_masked_numbers_change_only_the_sum():
    """Masked numbers are not authenticated, because a party may contribute any numbers."""
    masked, roster = enroll(make_parties(4))
    plus_one = alter_reply(MaskedInput, lambda x: replace(x, cells=x.cells + x.cells.dtype.type(1)))

    replies, _ = run_masked_sum(Wire(masked, on_reply=plus_one), roster)

    honest = sum_replies({p.name: p.answer(None) for p in make_parties(4)})
    assert replies.total.n == honest.n + 1
    assert (replies.total.items == honest.items + 1).all()


def test_holder_names_the_dealer_of_a_false_share(monkeypatch):
    masked, roster = enroll(make_parties(4))
    seal_pair = masked[1]._seal_pair

    def seal_false_share(holder, pair, seal_key, keys_digest):
        sealed, *_ = seal_pair(holder, (bytes(32), pair[1]), seal_key, keys_digest)
        _, seed, key, _ = seal_pair(holder, pair, seal_key, keys_digest)
        to_sign = sealed_digest(keys_digest, "p1", holder, sealed, seed, key)
        return sealed, seed, key, masked[1]._identity.sign(to_sign)

    monkeypatch.setattr(masked[1], "_seal_pair", seal_false_share)

    with pytest.raises(
        AggregationError, match="a share does not match its dealer's commitment"
    ) as caught:
        run_masked_sum(Wire(masked), roster)

    assert caught.value.party == "p0"
    assert "(p1)" in str(caught.value)


def test_dealer_is_named_for_shares_of_another_key(monkeypatch):
    masked, roster = enroll(make_parties(8))
    make_shares = masked[7]._make_shares

    def share_other_key(request, opening, opened):
        other = OpenState(
            opened.request, generate_secret(), opened.seal_private, opened.seed, opened.reply
        )
        return make_shares(request, opening, other)

    monkeypatch.setattr(masked[7], "_make_shares", share_other_key)

    with pytest.raises(AggregationError, match="'p7': its shares do not combine to its key"):
        run_masked_sum(Wire(masked, P7_SILENT), roster)
