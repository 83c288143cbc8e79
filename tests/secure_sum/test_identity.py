import os

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from fedneighbors.secure_sum._keys import Identity, Roster


def test_identity_is_read_back_equal(tmp_path):
    identity = Identity.new()

    identity.write(tmp_path / "north.pem")

    assert Identity.read(tmp_path / "north.pem") == identity
    assert (tmp_path / "north.pem").stat().st_mode & 0o777 == 0o600


def test_key_file_is_never_overwritten(tmp_path):
    Identity.new().write(tmp_path / "north.pem")

    with pytest.raises(FileExistsError):
        Identity.new().write(tmp_path / "north.pem")


def test_key_accessible_to_other_users_is_refused(tmp_path):
    path = tmp_path / "north.pem"
    Identity.new().write(path)
    os.chmod(path, 0o640)

    with pytest.raises(
        ValueError, match=r"others can access the private key north\.pem; run chmod"
    ):
        Identity.read(path)


@pytest.mark.parametrize("content", [b"", b"no key", None])
def test_file_without_a_signing_key_is_refused(tmp_path, content):
    if content is None:
        key = X25519PrivateKey.generate()
        content = key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    path = tmp_path / "north.pem"
    path.touch(0o600)
    path.write_bytes(content)

    with pytest.raises(ValueError, match=r"north\.pem is not"):
        Identity.read(path)


def test_roster_verifies_signatures_of_named_parties():
    north, east = Identity.new(), Identity.new()
    roster = Roster({"north": north.public, "east": east.public})

    signature = north.sign(b"content")

    assert roster.has_signed("north", b"content", signature)
    assert not roster.has_signed("east", b"content", signature)
    assert not roster.has_signed("north", b"other", signature)
    assert not roster.has_signed("west", b"content", signature)
    assert not roster.has_signed("north", b"content", b"short")
    assert roster.name_of(east) == "east"
    assert roster.name_of(Identity.new()) is None


def test_roster_is_read_back_equal(tmp_path):
    roster = Roster({name: Identity.new().public for name in ("north", "Zürich")})

    (tmp_path / "roster.json").write_text(roster.to_json(), "utf-8")

    assert Roster.read(tmp_path / "roster.json") == roster


@pytest.mark.parametrize(
    "text", ["", "[]", "3", '{"a": 1}', '{"a": "xyz"}', '{"a": "00"}', '{"": "' + "0" * 64 + '"}']
)
def test_invalid_roster_file_is_refused(tmp_path, text):
    (tmp_path / "roster.json").write_text(text)

    with pytest.raises(ValueError, match=r"roster\.json is not a roster"):
        Roster.read(tmp_path / "roster.json")


def test_oversized_roster_file_is_refused(tmp_path):
    (tmp_path / "roster.json").write_bytes(b" " * ((1 << 20) + 1))

    with pytest.raises(ValueError, match="too large for a roster"):
        Roster.read(tmp_path / "roster.json")


def test_roster_with_the_same_key_twice_is_refused():
    key = Identity.new().public

    with pytest.raises(ValueError, match="two parties have the same key"):
        Roster({"north": key, "east": key})


def test_private_key_of_wrong_length_is_refused():
    with pytest.raises(ValueError, match="32 bytes, got 5"):
        Identity(b"short")
