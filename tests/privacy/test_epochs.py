"""One charge for the same query on the same data, also after a restart; new data are charged."""

import subprocess
import sys
import textwrap
from types import SimpleNamespace

import numpy as np
import pytest

from fedneighbors import FederatedNeighbors, Privacy
from fedneighbors.federation._messages import encode
from fedneighbors.methods.fedknn._queries import objects_digest
from fedneighbors.methods.fedpnn.private._party import PrivateFedPNNParty
from fedneighbors.methods.fedpnn.private.protocol import OriginRequest
from fedneighbors.methods.flynn._features import FeatureMap
from fedneighbors.methods.flynn.algorithm import HashPlan
from fedneighbors.methods.flynn.private._party import PrivateFlyNNParty
from fedneighbors.methods.flynn.private.protocol import NoisyCountRequest
from fedneighbors.methods.knnper.private._party import PrivateKNNPerParty
from fedneighbors.methods.knnper.private.protocol import NoisedCountsRequest
from fedneighbors.neural._blueprint import perceptron
from fedneighbors.privacy._guarantees import ApproxDP, PureDP
from fedneighbors.privacy._policy import terms
from fedneighbors.privacy.ledger._ledger import Ledger
from fedneighbors.tabular._ownership import TableParty

X, Y = np.random.default_rng(0).normal(size=(30, 4)), np.arange(30) % 2
LOCAL = Privacy(epsilon=1, classes=(0, 1), bounds=(-4.0, 4.0))
STEPS = Privacy(epsilon=2, delta=1e-5, classes=(0, 1))
EMPTY = np.empty(0)
PLAN = HashPlan(FeatureMap(4, "none"), 40, 2, 5, 7)


def digest(x, y):
    return TableParty.table_digest.func(SimpleNamespace(_x=x, _y=y))


def make_client(name, x, y, **options):
    return PrivateKNNPerParty(name, x, y, perceptron(4, 2, hidden=(6,), seed=1), **options)


METHODS = {
    "flynn": (
        PrivateFlyNNParty,
        LOCAL,
        NoisyCountRequest("a", terms(LOCAL), 1, PLAN, (0, 1), False),
    ),
    "fedpnn": (PrivateFedPNNParty, LOCAL, OriginRequest("a", terms(LOCAL), 1, (0, 1))),
    "knnper": (
        make_client,
        STEPS,
        NoisedCountsRequest("a", terms(STEPS), (0, 1), EMPTY, EMPTY),
    ),
}


@pytest.fixture
def path(tmp_path):
    with Ledger(tmp_path / "north.ledger", party="north") as ledger:
        ledger.set_budget("table", ApproxDP(9, "1e-3"))
    return tmp_path / "north.ledger"


def reply_after_restart(name, path, rows):
    """Return the reply of a new party with a reopened ledger, and the number of charges."""
    make, privacy, request = METHODS[name]
    with Ledger(path, party="north") as ledger:
        reply = encode(make("north", *rows, privacy=privacy, ledger=ledger).answer(request))
        n_charges = sum(entry.kind == "reserved" for entry in ledger.entries())
    return reply, n_charges


@pytest.mark.parametrize("name", METHODS)
def test_a_table_is_charged_once_until_a_row_changes(path, name):
    other = X.copy()
    other[3, 0] += 0.5

    first = reply_after_restart(name, path, (X, Y))
    again = reply_after_restart(name, path, (X.copy(), Y.tolist()))
    changed = reply_after_restart(name, path, (other, Y))
    restored = reply_after_restart(name, path, (X, Y))

    assert first[1] == 1
    assert again == first
    assert changed[1] == 2
    assert changed[0] != first[0]
    assert restored == (first[0], 2)


@pytest.mark.parametrize("name", METHODS)
def test_no_digest_of_the_table_leaves_the_ledger(path, name):
    make, privacy, request = METHODS[name]
    with Ledger(path, party="north") as ledger:
        north = make("north", X, Y, privacy=privacy, ledger=ledger)
        reply = encode(north.answer(request))
        content = north.table_digest
        keyed = ledger._tables.data_digest("table", content)
        shown = repr(ledger.entries())

    assert north._gate.content == content
    for secret in (content, bytes.fromhex(keyed)):
        assert secret not in reply
        assert secret.hex() not in shown


def test_epochs_differ_by_content_data_set_and_ledger(path, tmp_path):
    with Ledger(path) as north, Ledger(tmp_path / "south.ledger", party="south") as south:
        epochs = [north.epoch("a", b"1"), north.epoch("a", b"2"), north.epoch("b", b"1")]
        epochs += [north.epoch("ab", b""), north.epoch("a", b"b"), south.epoch("a", b"1")]
        keys = {ledger._file.rows("SELECT key FROM about")[0] for ledger in (north, south)}

    assert len(set(epochs)) == 6
    assert len(keys) == 2


def test_a_reopened_ledger_knows_its_epochs(path):
    with Ledger(path) as ledger:
        first = ledger.epoch("table", b"content")

    with Ledger(path) as ledger:
        assert ledger.epoch("table", b"content") == first


RACE = """
    import sys
    from fedneighbors.privacy.ledger import Ledger
    with Ledger(sys.argv[1]) as ledger:
        print("ready", flush=True)
        sys.stdin.read(1)
        print(*(ledger.epoch("table", bytes([i])) for i in range(50)))
"""


def test_processes_that_begin_an_epoch_at_once_share_it(path):
    command = [sys.executable, "-c", textwrap.dedent(RACE), str(path)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    racers = [subprocess.Popen(command, **pipes) for _ in range(2)]
    for racer in racers:
        assert racer.stdout.readline() == "ready\n"

    for racer in racers:
        racer.stdin.write("x")
        racer.stdin.flush()
    first, second = (racer.communicate()[0] for racer in racers)

    assert len(set(first.split())) == 50
    assert second == first


SEARCH = """
    import sys
    import numpy as np
    from fedneighbors import FederatedNeighbors, Privacy
    from fedneighbors.privacy.ledger import Ledger
    for shift in sys.argv[2:]:
        points = np.random.default_rng(8).normal(size=(300, 4))
        points[7] += float(shift)
        with Ledger(sys.argv[1]) as ledger:
            search = FederatedNeighbors(
                algorithm="dann*", privacy=Privacy(1, "1e-6"), grid_s=0, workers="processes"
            ).fit(points, parties=np.arange(300) % 2, ledger=ledger)
            search.kneighbors(points[:1], 60)
            print(search.query_records_[0].n_returned, ledger.spent("0").epsilon)
"""


def test_a_search_in_another_process_is_charged_once(tmp_path):
    path = tmp_path / "broker.ledger"
    with Ledger(path, party="broker") as ledger:
        for name in "01":
            ledger.set_budget(name, ApproxDP(9, "1e-3"))

    def search(*shifts):
        command = [sys.executable, "-c", textwrap.dedent(SEARCH), str(path), *map(str, shifts)]
        printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        return printed.splitlines()

    (first,) = search(0)
    again, changed = search(0, 0.125)

    assert first.endswith(" 1")
    assert again == first
    assert changed.endswith(" 2")


def charges(objects, *fits):
    """Return the charges of a query after fits with one ledger: changes of objects and settings."""
    with Ledger(":memory:", party="broker") as ledger:
        ledger.set_budget("all", PureDP(9))
        for change in fits:
            settings = {"metric": "edit", "guarantee": "certified", "grid_s": 0, **change}
            fitted, ids = settings.pop("objects", objects), settings.pop("ids", None)
            search = FederatedNeighbors(algorithm="dann*", privacy=Privacy(1), **settings)
            search.fit(fitted, ids=ids, ledger=ledger).kneighbors(objects[:1], 2)
        return ledger.spent("all").epsilon


WORDS = ["federated", "search", "of", "strings"]


@pytest.mark.parametrize(
    ("objects", "metric"),
    [
        (WORDS, "edit"),
        ([{"a", 1}, {"b"}, {"a", "b"}], "jaccard"),
        (np.eye(4), "manhattan"),
        (np.eye(4, dtype=np.uint8), "tanimoto"),
    ],
    ids=["strings", "sets", "array", "bits"],
)
def test_a_new_fit_on_the_same_objects_is_charged_once(objects, metric):
    assert charges(objects, {"metric": metric}, {"metric": metric}) == 1


@pytest.mark.parametrize(
    "change",
    [
        {"objects": WORDS[::-1]},
        {"ids": ["a", "b", "c", "d"]},
        {"random_state": 1},
    ],
    ids=["order", "names", "ties"],
)
def test_other_objects_names_or_ties_begin_an_epoch(change):
    assert charges(WORDS, {}, change) == 2


def test_a_metric_of_ones_own_begins_an_epoch_with_every_fit():
    def length(first, second):
        return abs(len(first) - len(second))

    assert charges(WORDS, {"metric": length}, {"metric": length}) == 2


def test_objects_without_canonical_bytes_have_no_digest():
    assert objects_digest([["1", "2"]], ["0"], "jaccard") is None
    assert objects_digest([np.array(["1"])], ["0"], "jaccard") is None
    assert objects_digest([{1.5}], ["0"], "jaccard") is None


def test_every_part_of_a_table_changes_its_digest():
    x, y = np.arange(6.0).reshape(3, 2), np.array([0, 1, 0])
    tables = [(x, y), (x.astype(np.float32), y), (x.reshape(2, 3), y[:2]), (x[::-1], y)]
    tables += [(x, np.array([1, 0, 0])), (x, np.array(["0", "1", "0"])), (x[:2], y[:2])]

    assert len({digest(*table) for table in tables}) == len(tables)
    assert digest(x.copy(order="F"), y.copy()) == digest(x, y)
