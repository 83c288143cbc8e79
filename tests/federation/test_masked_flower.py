from pathlib import Path

import pytest
from flwr.app import Context, Error, RecordDict
from flwr.app import Message as Envelope

from fedneighbors.errors import AggregationError, PartyRefused, ProtocolError
from fedneighbors.federation import _flower as flower
from fedneighbors.federation import _inprocess as inprocess
from fedneighbors.federation._flower import parse_masked_sums
from fedneighbors.federation._loop import total
from fedneighbors.federation._masked_sums import MaskedSums
from fedneighbors.secure_sum._keys import Identity, Roster
from tests.federation.grid import ProcessGrid
from tests.federation.parties import Counter, CountRequest, count

VALUES = {"ann": "0 1 1", "bob": "2", "cyd": "0 2 2 2", "dan": "1"}


def build(node_config):
    values = tuple(int(value) for value in str(node_config["values"]).split())
    return Counter(node_config["party-name"], values)


@pytest.fixture
def enrolled(tmp_path):
    """Write each party's key, roster and folder; return the configurations."""
    keys = {name: Identity.new() for name in VALUES}
    roster = Roster({name: key.public for name, key in keys.items()})
    (tmp_path / "roster.json").write_text(roster.to_json())
    for name, key in keys.items():
        key.write(tmp_path / f"{name}.pem")
    return {
        name: {
            "party-name": name,
            "values": VALUES[name],
            "identity-key": str(tmp_path / f"{name}.pem"),
            "roster": str(tmp_path / "roster.json"),
            "mask-state": str(tmp_path / f"{name}-state"),
        }
        for name in VALUES
    }


def grid_of(configs, **more):
    return ProcessGrid(flower.client_app(build), *configs.values(), **more)


def run(grid, sums, **more):
    return flower.run(grid, count(3), min_parties=3, timeout_s=0.5, sums=sums, **more)


def sums_for(configs, **more):
    path = configs["ann"]["roster"]
    config = {"secure-aggregation": True, "roster": path, "sum-threshold": 0, **more}
    return parse_masked_sums(config)


def test_masked_sum_over_nodes_equals_the_plain_sum(enrolled, tmp_path):
    parties = [
        Counter(name, tuple(int(value) for value in VALUES[name].split())) for name in VALUES
    ]

    outcome = run(grid_of(enrolled), sums_for(enrolled))

    assert outcome.result == inprocess.run(count(3), parties).result
    assert [r.reduce for r in outcome.rounds] == ["gather", *["masked"] * 4]
    for name in VALUES:
        left = {p.suffix for p in (tmp_path / f"{name}-state").iterdir() if p.stat().st_size}
        assert left == {".settle", ".unmask"}


def test_run_configuration_switches_masking(enrolled):
    outcomes = []
    app = flower.server_app(lambda _: count(3), lambda outcome, _: outcomes.append(outcome))
    config = {
        "min-parties": 4,
        "timeout-s": 5.0,
        "secure-aggregation": True,
        "roster": enrolled["ann"]["roster"],
        "sum-threshold": 0,
    }

    app(grid_of(enrolled), context(config))

    assert {r.reduce for r in outcomes[0].rounds[1:]} == {"masked"}


def context(config):
    return Context(1, 1, {}, RecordDict(), config)


def test_masking_node_refuses_plain_sums(enrolled):
    with pytest.raises(PartyRefused, match=r"sent only as part of a masked sum .CountRequest"):
        run(grid_of(enrolled), None)


def test_node_without_masking_refuses_masked_sums(enrolled):
    plain = {key: enrolled["bob"][key] for key in ("party-name", "values")}

    with pytest.raises(AggregationError, match="'bob': it does not support masked sums"):
        run(grid_of({**enrolled, "bob": plain}), sums_for(enrolled))


@pytest.mark.parametrize("key", ["identity-key", "roster", "mask-state"])
def test_partly_configured_node_answers_nothing(enrolled, key):
    del enrolled["bob"][key]

    with pytest.raises(PartyRefused, match=rf"'bob' refused: a key is not set .*\({key}\)"):
        run(grid_of(enrolled), sums_for(enrolled))


@pytest.mark.parametrize("file", ["identity-key", "roster"])
def test_node_with_unusable_files_refuses_without_paths(enrolled, file, caplog):
    enrolled["bob"][file] += ".missing"

    with pytest.raises(PartyRefused, match="'bob' refused: its key, roster or folder") as caught:
        run(grid_of(enrolled), sums_for(enrolled))

    assert "missing" not in str(caught.value)
    assert "this party cannot form masked sums" in caplog.text


def test_node_with_an_unenrolled_key_answers_nothing(enrolled, tmp_path):
    Identity.new().write(tmp_path / "stranger.pem")
    enrolled["bob"]["identity-key"] = str(tmp_path / "stranger.pem")

    with pytest.raises(PartyRefused, match="'bob' refused: its key, roster or folder"):
        run(grid_of(enrolled), sums_for(enrolled))


def test_node_with_the_key_of_another_party_is_named(enrolled):
    enrolled["bob"]["identity-key"] = enrolled["cyd"]["identity-key"]

    with pytest.raises(AggregationError, match="'bob': its keys are not signed") as caught:
        run(grid_of(enrolled), sums_for(enrolled))

    assert caught.value.party == "bob"


def test_coordinator_with_a_forged_roster_learns_nothing(enrolled):
    """Use a roster whose key for bob was not created by bob."""
    fake = Identity.new()
    roster = Roster.read(Path(enrolled["ann"]["roster"]))
    grid = grid_of(enrolled)

    with pytest.raises(AggregationError, match="'bob': its keys are not signed"):
        run(grid, MaskedSums(Roster({**roster.keys, "bob": fake.public})))


def test_drop_out_is_reported_and_the_others_are_summed(enrolled):
    grid = grid_of(enrolled)
    grid.app = silent_for_input(grid.app, node=11)
    seen = []

    def coordinate():
        seen.append((yield total(CountRequest(3))))

    flower.run(
        grid,
        coordinate(),
        min_parties=4,
        timeout_s=5.0,
        sums=sums_for(enrolled, **{"sum-threshold": 3}),
    )

    (replies,) = seen
    assert replies.missing == {"bob": "the app failed on its node"}
    assert replies.total.n_rows == 3 + 4 + 1


def silent_for_input(app, *, node):
    def answer(envelope, where):
        frame = envelope.content["frame"]["frame"].data if "frame" in envelope.content else b""
        if where.node_id == node and b"MaskInput" in frame[:20]:
            return Envelope(Error(2, "gone"), reply_to=envelope)
        return app(envelope, where)

    return answer


def test_node_answering_a_message_twice_is_named(enrolled):
    grid = grid_of(enrolled)
    pull = grid.pull_messages

    def twice(names):
        replies = pull(names)
        (second,) = [r for r in replies if r.metadata.src_node_id == 11] or [None]
        other = [r for r in replies if r.metadata.src_node_id == 12]
        if second is None or not other:
            return replies
        forged = type(second)(
            other[0].content, reply_to=envelopes[second.metadata.reply_to_message_id]
        )
        return [*replies, forged]

    envelopes = {}
    push = grid.push_messages

    def remember(items):
        names = push(items)
        envelopes.update(zip(names, items, strict=True))
        return names

    grid.push_messages, grid.pull_messages = remember, twice

    with pytest.raises(ProtocolError, match=r"party '?(node 11|bob)'? answered one request twice"):
        run(grid, sums_for(enrolled))


@pytest.mark.parametrize(
    ("more", "match"),
    [
        ({"secure-aggregation": "yes"}, "expected secure-aggregation as true or false"),
        ({"sum-threshold": -1}, "expected sum-threshold as an integer"),
        ({"sum-threshold": True}, "expected sum-threshold as an integer"),
        ({"roster": ""}, "needs the roster"),
        ({"roster": "/nowhere/roster.json"}, "the roster cannot be read"),
    ],
)
def test_run_configuration_is_checked(enrolled, more, match):
    with pytest.raises(ValueError, match=match):
        sums_for(enrolled, **more)


def test_sums_are_unmasked_by_default():
    assert parse_masked_sums({}) is None
    assert parse_masked_sums({"secure-aggregation": False, "roster": ""}) is None
