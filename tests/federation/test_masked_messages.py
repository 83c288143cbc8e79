from dataclasses import replace

import numpy as np
import pytest

from fedneighbors.errors import WireError
from fedneighbors.federation._masking import (
    Advert,
    Confirm,
    Confirmation,
    DealShares,
    MaskedInput,
    MaskInput,
    OpenSum,
    Revealed,
    SealedShares,
    Unmask,
)
from fedneighbors.federation._messages import decode, encode

ID = "0123456789abcdef" * 2
ENTRY = (bytes(112), bytes(32), bytes(32), bytes(64))
ADVERTS = {"a": (b"1" * 32, b"2" * 32, bytes(64)), "b": (b"3" * 32, b"4" * 32, bytes(64))}
SAMPLES = {
    OpenSum: OpenSum(ID, ("a", "b"), 2, "CountRequest", bytes(32)),
    Advert: Advert(ID, bytes(32), bytes(32), bytes(64)),
    DealShares: DealShares(ID, ADVERTS),
    SealedShares: SealedShares(ID, bytes(32), {"a": ENTRY, "b": (b"", *ENTRY[1:])}),
    MaskInput: MaskInput(ID, ("a", "b"), {"b": ENTRY}, b"frame"),
    MaskedInput: MaskedInput(ID, (("<u2", (2, 1)), ("|i1", ())), np.zeros(3, "<u4")),
    Confirm: Confirm(ID, ("a", "b")),
    Confirmation: Confirmation(ID, bytes(64)),
    Unmask: Unmask(ID, ("a", "b"), {"a": bytes(64)}),
    Revealed: Revealed(ID, {"a": bytes(32)}, {"b": bytes(32)}),
}
TOO_MANY = tuple(f"p{k:03}" for k in range(129))


@pytest.mark.parametrize("kind", SAMPLES)
def test_message_round_trips_through_its_frame(kind):
    sample = SAMPLES[kind]

    assert decode(encode(sample), (kind,)) == sample


@pytest.mark.parametrize("kind", SAMPLES)
@pytest.mark.parametrize("round_id", ["", "../../etc/passwd", ID.upper(), ID + "0", ID[:-1] + "\n"])
def test_round_id_must_be_a_safe_file_name(kind, round_id):
    with pytest.raises(ValueError, match="a round id must have 32"):
        replace(SAMPLES[kind], round_id=round_id)


@pytest.mark.parametrize(
    ("kind", "change"),
    [
        (OpenSum, {"names": ("b", "a")}),
        (OpenSum, {"names": ("a", "a")}),
        (OpenSum, {"names": ("a",)}),
        (OpenSum, {"names": TOO_MANY}),
        (OpenSum, {"names": ("", "a")}),
        (OpenSum, {"names": ("a\n", "b")}),
        (OpenSum, {"names": ("a", "b" * 101)}),
        (OpenSum, {"request_digest": b""}),
        (OpenSum, {"request_name": ""}),
        (OpenSum, {"request_name": "x" * 101}),
        (Advert, {"mask_key": bytes(31)}),
        (Advert, {"seal_key": bytes(33)}),
        (Advert, {"signature": bytes(63)}),
        (DealShares, {"adverts": {}}),
        (DealShares, {"adverts": {**ADVERTS, "c": ADVERTS["a"]}}),
        (DealShares, {"adverts": {**ADVERTS, "c": (b"5" * 31, b"6" * 32, bytes(64))}}),
        (DealShares, {"adverts": {**ADVERTS, "c": (b"5" * 32, b"6" * 32, bytes(65))}}),
        (SealedShares, {"seed_commitment": b""}),
        (SealedShares, {"sealed": {}}),
        (SealedShares, {"sealed": {"a": (bytes(111), *ENTRY[1:])}}),
        (SealedShares, {"sealed": {"a": (ENTRY[0], b"", *ENTRY[2:])}}),
        (SealedShares, {"sealed": {"a": (*ENTRY[:3], b"")}}),
        (SealedShares, {"sealed": dict.fromkeys(TOO_MANY, ENTRY)}),
        (MaskInput, {"members": ("b", "a")}),
        (MaskInput, {"sealed": {}}),
        (MaskedInput, {"layout": (("<f8", (3,)),)}),
        (MaskedInput, {"layout": (("<u2", (2,)),)}),
        (MaskedInput, {"layout": (("<u8", (3,)),)}),
        (MaskedInput, {"layout": (("<u4", (1 << 40,)),)}),
        (MaskedInput, {"cells": np.zeros((3, 1), "<u4")}),
        (MaskedInput, {"cells": np.zeros(3, "<u8")}),
        (Confirm, {"survivors": ()}),
        (Confirmation, {"signature": b""}),
        (Unmask, {"survivors": ("b", "a")}),
        (Unmask, {"confirmations": {"a": b""}}),
        (Revealed, {"seed_shares": {}}),
        (Revealed, {"seed_shares": {"a": bytes(31)}}),
        (Revealed, {"key_shares": {"a": bytes(33)}}),
    ],
)
def test_invalid_message_is_rejected(kind, change):
    with pytest.raises(ValueError, match=r"expected|party|name|key|masked|array"):
        replace(SAMPLES[kind], **change)


def test_frame_of_an_invalid_message_is_a_wire_error():
    frame = encode(SAMPLES[Confirmation])
    short = frame.replace(b"\x40\0\0\0" + bytes(64), b"\x3f\0\0\0" + bytes(63))

    with pytest.raises(WireError, match="Confirmation: expected 64 bytes"):
        decode(short, (Confirmation,))
