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
from tests.federation.grid import ProcessGrid, write_keys
from tests.federation.parties import Counter, CountRequest, count

VALUES = {"ann": "0 1 1", "bob": "2", "cyd": "0 2 2 2", "dan": "1"}


def build(node_config):
    values = tuple(int(value) for value in str(node_config["values"]).split())
    return Counter(node_config["party-name"], values)


@pytest.fixture
def configs(tmp_path):
    """Write the parties' keys and roster; return the configurations of their nodes."""
    keys = write_keys(tmp_path, VALUES)
    return {name: {"party-name": name, "values": VALUES[name], **keys[name]} for name in VALUES}


def make_grid(configs):
    return ProcessGrid(flower.client_app(build), *configs.values())


def run(grid, sums):
    return flower.run(grid, count(3), min_parties=3, timeout_s=0.5, sums=sums)


def make_sums(configs, **changes):
    path = configs["ann"]["roster"]
    config = {"secure-aggregation": True, "roster": path, "sum-threshold": 0, **changes}
    return parse_masked_sums(config)


def test_masked_sum_over_nodes_equals_the_plain_sum(configs, tmp_path):
    parties = [
        Counter(name, tuple(int(value) for value in VALUES[name].split())) for name in VALUES
    ]

    outcome = run(make_grid(configs), make_sums(configs))

    assert outcome.result == inprocess.run(count(3), parties).result
    assert [r.reduce for r in outcome.rounds] == ["gather", *["masked"] * 4]
    for name in VALUES:
        files = [p for p in (tmp_path / f"{name}-masks").iterdir() if p.stat().st_size]
        assert {p.suffix for p in files if p.stem != "policy"} == {".settle", ".unmask"}
        assert len([p for p in files if p.stem == "policy"]) == 1


def test_run_configuration_switches_masking(configs):
    outcomes = []
    app = flower.server_app(lambda _: count(3), lambda outcome, _: outcomes.append(outcome))
    config = {
        "min-parties": 4,
        "timeout-s": 5.0,
        "secure-aggregation": True,
        "roster": configs["ann"]["roster"],
        "sum-threshold": 0,
    }

    app(make_grid(configs), make_context(config))

    assert {r.reduce for r in outcomes[0].rounds[1:]} == {"masked"}


def make_context(config):
    return Context(1, 1, {}, RecordDict(), config)


def test_masking_node_refuses_plain_sums(configs):
    with pytest.raises(PartyRefused, match=r"sent only as part of a masked sum .CountRequest"):
        run(make_grid(configs), None)


def test_node_without_masking_refuses_masked_sums(configs):
    plain = {key: configs["bob"][key] for key in ("party-name", "values")}

    with pytest.raises(AggregationError, match="'bob': it does not support masked sums"):
        run(make_grid({**configs, "bob": plain}), make_sums(configs))


@pytest.mark.parametrize("key", ["identity-key", "roster", "mask-state"])
def test_partly_configured_node_answers_nothing(configs, key):
    del configs["bob"][key]

    with pytest.raises(PartyRefused, match=rf"'bob' refused: a key is not set .*\({key}\)"):
        run(make_grid(configs), make_sums(configs))


@pytest.mark.parametrize("file", ["identity-key", "roster"])
def test_node_with_unusable_files_refuses_without_paths(configs, file, caplog):
    configs["bob"][file] += ".missing"

    with pytest.raises(PartyRefused, match="'bob' refused: its key, roster or folder") as caught:
        run(make_grid(configs), make_sums(configs))

    assert "missing" not in str(caught.value)
    assert "this party cannot form masked sums" in caplog.text


def test_node_with_an_unenrolled_key_answers_nothing(configs, tmp_path):
    Identity.new().write(tmp_path / "stranger.pem")
    configs["bob"]["identity-key"] = str(tmp_path / "stranger.pem")

    with pytest.raises(PartyRefused, match="'bob' refused: its key, roster or folder"):
        run(make_grid(configs), make_sums(configs))


def test_node_with_the_key_of_another_party_is_named(configs):
    configs["bob"]["identity-key"] = configs["cyd"]["identity-key"]

    with pytest.raises(AggregationError, match="'bob': its keys are not signed") as caught:
        run(make_grid(configs), make_sums(configs))

    assert caught.value.party == "bob"


def test_coordinator_with_a_forged_roster_learns_nothing(configs):
    """Use a roster whose key for bob was not created by bob."""
    forged = Identity.new()
    roster = Roster.read(Path(configs["ann"]["roster"]))
    grid = make_grid(configs)

    with pytest.raises(AggregationError, match="'bob': its keys are not signed"):
        run(grid, MaskedSums(Roster({**roster.keys, "bob": forged.public})))


def test_drop_out_is_reported_and_the_others_are_summed(configs):
    grid = make_grid(configs)
    grid.app = fail_at_mask_input(grid.app, node=11)

    def coordinate():
        return (yield total(CountRequest(3)))

    outcome = flower.run(
        grid,
        coordinate(),
        min_parties=4,
        timeout_s=5.0,
        sums=make_sums(configs, **{"sum-threshold": 3}),
    )

    replies = outcome.result
    assert replies.missing == {"bob": "the app failed on its node"}
    assert replies.total.n_rows == 3 + 4 + 1


def fail_at_mask_input(app, *, node):
    """Return an app that fails on one node when it should mask its input."""

    def answer(envelope, context):
        frame = envelope.content["frame"]["frame"].data if "frame" in envelope.content else b""
        if context.node_id == node and b"MaskInput" in frame[:20]:
            return Envelope(Error(2, "text of the node"), reply_to=envelope)
        return app(envelope, context)

    return answer


def test_node_answering_a_message_twice_is_named(configs):
    grid = make_grid(configs)
    pull = grid.pull_messages

    def pull_with_second_reply(ids):
        replies = pull(ids)
        by_node = {reply.metadata.src_node_id: reply for reply in replies}
        if not {11, 12} <= set(by_node):
            return replies
        request_id = by_node[11].metadata.reply_to_message_id
        second = Envelope(by_node[12].content, reply_to=envelopes[request_id])
        return [*replies, second]

    envelopes = {}
    push = grid.push_messages

    def push_and_record(items):
        ids = push(items)
        envelopes.update(zip(ids, items, strict=True))
        return ids

    grid.push_messages, grid.pull_messages = push_and_record, pull_with_second_reply

    with pytest.raises(ProtocolError, match=r"party '?(node 11|bob)'? answered one request twice"):
        run(grid, make_sums(configs))


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"secure-aggregation": "yes"}, "expected secure-aggregation as true or false"),
        ({"sum-threshold": -1}, "expected sum-threshold as an integer"),
        ({"sum-threshold": True}, "expected sum-threshold as an integer"),
        ({"roster": ""}, "needs the roster"),
        ({"roster": "/nowhere/roster.json"}, "the roster cannot be read"),
    ],
)
def test_run_configuration_is_checked(configs, changes, match):
    with pytest.raises(ValueError, match=match):
        make_sums(configs, **changes)


def test_sums_are_unmasked_by_default():
    assert parse_masked_sums({}) is None
    assert parse_masked_sums({"secure-aggregation": False, "roster": ""}) is None
