"""``fedneighbors keys`` creates keys and rosters."""

import pytest
from typer.testing import CliRunner

from fedneighbors.cli._main import app
from fedneighbors.secure_sum._keys import Identity, Roster


@pytest.fixture
def run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return lambda *arguments: CliRunner().invoke(app, ["keys", *arguments])


def test_a_roster_contains_the_keys_of_both_parties(run, tmp_path):
    for party in ("north", "east"):
        assert run("new", "--party", party, "--out", f"{party}.pem").exit_code == 0

    result = run("roster", "north.pub", "east.pub", "--out", "roster.json")

    roster = Roster.read(tmp_path / "roster.json")
    assert result.exit_code == 0
    for party in ("north", "east"):
        assert roster.name_of(Identity.read(tmp_path / f"{party}.pem")) == party
        assert roster.keys[party].hex() in result.output


@pytest.mark.parametrize("existing", ["north.pem", "north.pub"])
def test_a_key_is_never_overwritten(run, tmp_path, existing):
    (tmp_path / existing).write_text("existing key")

    result = run("new", "--party", "north", "--out", "north.pem")

    assert result.exit_code == 1
    assert "exists" in result.output
    assert [path.name for path in tmp_path.iterdir()] == [existing]
    assert (tmp_path / existing).read_text() == "existing key"


def test_a_roster_with_two_keys_of_one_party_is_refused(run, tmp_path):
    for name in ("one", "two"):
        run("new", "--party", "north", "--out", f"{name}.pem")

    result = run("roster", "one.pub", "two.pub")

    assert result.exit_code == 1
    assert "two different keys are given for 'north'" in result.output
    assert not (tmp_path / "roster.json").exists()


def test_a_private_key_in_place_of_a_public_one_is_refused(run):
    run("new", "--party", "north", "--out", "north.pem")

    result = run("roster", "north.pem")

    assert result.exit_code == 1
    assert "is not a roster" in result.output
