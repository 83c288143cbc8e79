import pytest
from typer.testing import CliRunner

from fedneighbors.cli._main import app
from fedneighbors.secure_sum._keys import Identity, Roster


@pytest.fixture
def run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return lambda *words: CliRunner().invoke(app, ["keys", *words])


def test_keys_of_two_parties_make_a_roster(run, tmp_path):
    for party in ("north", "east"):
        assert run("new", "--party", party, "--out", f"{party}.pem").exit_code == 0

    done = run("roster", "north.pub", "east.pub", "--out", "roster.json")

    roster = Roster.read(tmp_path / "roster.json")
    assert done.exit_code == 0
    for party in ("north", "east"):
        assert roster.name_of(Identity.read(tmp_path / f"{party}.pem")) == party
        assert roster.keys[party].hex() in done.output


@pytest.mark.parametrize("existing", ["north.pem", "north.pub"])
def test_a_key_is_never_overwritten(run, tmp_path, existing):
    (tmp_path / existing).write_text("precious")

    done = run("new", "--party", "north", "--out", "north.pem")

    assert done.exit_code == 1
    assert "exists" in done.output
    assert [path.name for path in tmp_path.iterdir()] == [existing]
    assert (tmp_path / existing).read_text() == "precious"


def test_two_keys_for_one_party_make_no_roster(run, tmp_path):
    for file in ("one", "two"):
        run("new", "--party", "north", "--out", f"{file}.pem")

    done = run("roster", "one.pub", "two.pub")

    assert done.exit_code == 1
    assert "two different keys are given for 'north'" in done.output
    assert not (tmp_path / "roster.json").exists()


def test_private_key_in_place_of_a_public_one_is_refused(run):
    run("new", "--party", "north", "--out", "north.pem")

    done = run("roster", "north.pem")

    assert done.exit_code == 1
    assert "is not a roster" in done.output
