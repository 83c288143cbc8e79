from pathlib import Path

import numpy as np
import pytest
from sklearn.datasets import load_digits

from fedneighbors.datasets import read_table
from fedneighbors.federation._inprocess import run
from fedneighbors.methods.flynn._settings import FlyNNSettings
from fedneighbors.methods.flynn.protocol import FlyNNParty, coordinate
from fedneighbors.secure_sum._keys import Identity, Roster
from tests.e2e.network import Network, wait_until, write_node_key

pytestmark = pytest.mark.e2e
APP = Path(__file__).parents[2] / "examples" / "flower-flynn"
PARTIES = ("ann", "bob", "cyd")
LIMIT_S = 800  # for one run; other tests may slow the machine down


@pytest.fixture
def network(tmp_path):
    with Network(tmp_path) as network:
        yield network


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    """Yield a network with the nodes of ann and bob, which have no registered names."""
    with Network(tmp_path_factory.mktemp("pair")) as network:
        write_digits(network.folder, ("ann", "bob"))
        for party in ("ann", "bob"):
            join_network(network, party, named=False)
        yield network


def write_digits(folder, parties):
    """Write each party's part of the digits, and the pooled table."""
    x, y = load_digits(return_X_y=True)
    rows = np.column_stack([x, y]).astype(int)
    header = ",".join([*(f"pixel_{pixel}" for pixel in range(64)), "digit"])
    np.savetxt(folder / "pooled.csv", rows, "%d", ",", header=header, comments="")
    for index, party in enumerate(parties):
        part = rows[index :: len(parties)]
        np.savetxt(folder / f"{party}.csv", part, "%d", ",", header=header, comments="")


def join_network(network, party, *, named, **settings):
    model_folder = network.folder / f"models-{party}"
    model_folder.mkdir()
    write_node_key(network.folder / party)
    network.register(party, named=named)
    network.start_node(
        party,
        data=str(network.folder / f"{party}.csv"),
        label="digit",
        model_folder=str(model_folder),
        **settings,
    )


def enroll(folder, parties):
    """Create each party's signing key and the roster; return the settings of the nodes."""
    keys = {party: Identity.new() for party in parties}
    roster = folder / "roster.json"
    roster.write_text(Roster({party: key.public for party, key in keys.items()}).to_json())
    for party, key in keys.items():
        key.write(folder / f"{party}.pem")
    return {
        party: {
            "identity_key": str(folder / f"{party}.pem"),
            "roster": str(roster),
            "mask_state": str(folder / f"{party}-masks"),
        }
        for party in parties
    }


def pooled_model(folder):
    table = read_table(folder / "pooled.csv", label="digit")
    party = FlyNNParty(
        "pooled", table.x, table.y, feature_names=table.feature_names, label_name="digit"
    )
    return run(coordinate(FlyNNSettings(n_units=2048, seed=7)), [party]).result


def train_flynn(network, **options):
    settings = {"min_parties": 3, "timeout_s": 120.0, "n_units": 2048, "seed": 7}
    settings["model_path"] = str(network.folder / "coordinator.model")
    return network.start_run(APP, **settings, **options).communicate(timeout=LIMIT_S)[0]


def read_models(folder):
    """Return the bytes of the coordinator's and the parties' models."""
    paths = [folder / f"models-{party}" / "flynn.model" for party in PARTIES]
    return [path.read_bytes() for path in (folder / "coordinator.model", *paths)]


def test_model_under_masked_sums_is_the_pooled_one_bit_for_bit(network):
    write_digits(network.folder, PARTIES)
    expected = pooled_model(network.folder).to_bytes()  # compiles the kernels for the nodes
    masks = enroll(network.folder, PARTIES)
    for party in PARTIES:
        join_network(network, party, named=True, **masks[party])

    roster = str(network.folder / "roster.json")
    printed = train_flynn(network, secure_aggregation=True, roster=roster)

    assert network.status()[0] == "finished:completed", printed
    # Four requests gather, four sum; a masked sum takes four exchanges.
    assert printed.count("3 parties answered") == 4 + 4 * 4
    assert printed.count("MaskInput: 3 parties answered") == 4
    assert read_models(network.folder) == [expected] * 4
    assert not list(network.folder.rglob("*.pending"))


def test_no_model_is_written_without_an_expected_party(pair):
    path = str(pair.folder / "coordinator.model")

    process = pair.start_run(APP, min_parties=3, timeout_s=1.0, model_path=path)
    printed = process.communicate(timeout=LIMIT_S)[0]

    status, details = pair.status()
    assert status == "finished:failed", printed
    assert "of at least 3 parties were connected after 1 s" in details
    assert not list(pair.folder.rglob("*.model*"))


def test_a_killed_node_is_named_and_no_model_is_written(pair):
    model_path = str(pair.folder / "coordinator.model")
    process = pair.start_run(APP, min_parties=2, timeout_s=180.0, model_path=model_path)
    log = pair.log("bob")
    wait_until(lambda: "query.ask" in log.read_text(), "a request to bob", log, limit_s=120)
    pair.kill_node("bob")
    printed = process.communicate(timeout=LIMIT_S)[0]

    status, details = pair.status()
    assert status == "finished:failed"
    assert "Sending: query.ask" not in log.read_text()
    reason = "from party 'bob' (its node is not connected any more); no result was written"
    assert reason in details
    error = f"fedneighbors.errors.PartyMissing: no reply to the drafts of the schema {reason}"
    assert error in printed
    assert not list(pair.folder.rglob("*.model*"))


def test_a_node_is_rejected_until_its_key_is_registered(network):
    write_node_key(network.folder / "eve")
    log = network.log("eve")

    process = network.start_node("eve")
    exit_code = process.wait(timeout=60)

    assert exit_code != 0
    assert "Failed to activate SuperNode" in log.read_text()
    network.register("eve", named=True)
    network.start_node("eve")
    wait_until(lambda: "SuperNode ID:" in log.read_text(), "eve is admitted", log)
