import subprocess
import sys

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, RecordDict
from flwr.app import Message as Envelope

from fedneighbors import __version__
from fedneighbors.errors import (
    FederationError,
    PartyMissing,
    PartyRefused,
    ProtocolError,
    WireError,
)
from fedneighbors.federation import _flower as flower
from fedneighbors.federation import _inprocess as inprocess
from fedneighbors.federation._loop import gather
from fedneighbors.federation._messages import encode
from fedneighbors.federation._roles import Refusal, Refused
from tests.federation.grid import ProcessGrid
from tests.federation.parties import Counter, CountRequest, Impostor, NameRequest, count

VALUES = {"ann": (0, 1, 1), "bob": (2,), "cyd": ()}


def build(node_config):
    """Build a counter from a node's configuration."""
    if node_config.get("broken"):
        raise OSError(f"secret path {40 + 2}")
    if "values" not in node_config:
        raise Refused("a key is not set in the configuration of the node", "values")
    values = tuple(int(value) for value in str(node_config["values"]).split())
    party_class = Impostor if node_config.get("impostor") else Counter
    return party_class(node_config["party-name"], values, fault=str(node_config.get("fault", "")))


def make_grid(*configs, **options):
    return ProcessGrid(flower.client_app(build), *configs, **options)


def node_configs(**extra):
    """Return the nodes' configurations, with extra entries for some parties."""
    return [
        {"party-name": name, "values": " ".join(map(str, values)), **extra.get(name, {})}
        for name, values in VALUES.items()
    ]


def run(coordinator, grid, *, min_parties=3, timeout_s=10.0, on_round=None):
    return flower.run(
        grid, coordinator, min_parties=min_parties, timeout_s=timeout_s, on_round=on_round
    )


def test_outcome_equals_that_of_the_in_process_runtime():
    in_process = inprocess.run(count(3), [Counter(name, VALUES[name]) for name in VALUES])
    records = []

    over_nodes = run(count(3), make_grid(*node_configs()), on_round=records.append)

    assert over_nodes.result == in_process.result
    for a, b in zip(over_nodes.rounds, in_process.rounds, strict=True):
        assert (a.index, a.request, a.reduce) == (b.index, b.request, b.reduce)
        assert (a.upload_bytes, a.download_bytes) == (b.upload_bytes, b.download_bytes)
    assert tuple(records) == over_nodes.rounds


def test_shared_request_is_packed_once_and_unchanged():
    grid = make_grid(*node_configs())

    run(count(3), grid)

    frames = [envelope.content["frame"]["frame"] for _, action, envelope in grid.pushed[3:6]]
    assert {action for _, action, _ in grid.pushed[3:6]} == {"ask"}
    assert {frame.data for frame in frames} == {encode(NameRequest("hello"))}
    assert len({id(frame) for frame in frames}) == 1


def test_message_ttl_exceeds_the_timeout():
    grid = make_grid(*node_configs())

    run(count(3), grid, timeout_s=100_000.0)

    assert all(envelope.metadata.ttl > 100_000 for _, _, envelope in grid.pushed)


def test_run_configuration_does_not_reach_the_party():
    received = []
    app = flower.client_app(lambda config: received.append(dict(config)) or build(config))
    grid = make_grid(*node_configs())
    grid.app = app

    run(count(3), grid)

    expected = [{**config, flower.RUN_KEY: "1"} for config in node_configs()]
    assert received == expected * 2


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        (1, "could not load the app"),
        (2, "the app failed"),
        (3, "the request to it was lost"),
        (5, "not connected any more"),
        (8, "the process of the app ended"),
        (99, "Flower reports error 99"),
    ],
)
def test_flower_error_makes_party_missing_without_node_text(code, reason):
    grid = make_grid(*node_configs(), errors={(11, "ask"): code})

    with pytest.raises(PartyMissing, match=f"'bob' \\(.*{reason}") as caught:
        run(count(3), grid)

    assert set(caught.value.missing) == {"bob"}
    assert "4711" not in str(caught.value)


def test_node_without_a_timely_answer_is_missing():
    grid = make_grid(*node_configs(), silent={(12, "ask")})

    with pytest.raises(PartyMissing, match=r"'cyd' \(no reply within 0\.5 s\)") as caught:
        run(count(3), grid, timeout_s=0.5)

    assert caught.value.missing == {"cyd": "no reply within 0.5 s"}


@pytest.mark.parametrize("nothing_sent", [False, True])
def test_unsent_request_makes_the_party_missing(nothing_sent):
    grid = make_grid(*node_configs(), unsent={(11, "ask")})
    if nothing_sent:  # the SuperLink rejected the whole push as too large
        push = grid.push_messages
        grid.push_messages = lambda e: [] if "ask" in e[0].metadata.message_type else push(e)

    with pytest.raises(PartyMissing, match=r"'bob' \(the request could not be sent\)") as caught:
        run(count(3), grid)

    assert set(caught.value.missing) == (set(VALUES) if nothing_sent else {"bob"})


def test_refusal_reaches_the_coordinator():
    grid = make_grid(*node_configs(cyd={"fault": "refuse"}))

    with pytest.raises(PartyRefused, match=r"'cyd' refused: a column is missing \(age\)"):
        run(count(3), grid)


@pytest.mark.parametrize(
    ("extra", "error_type"), [({"fault": "fail"}, "RuntimeError"), ({"broken": True}, "OSError")]
)
def test_every_node_exception_is_sent_as_one_code(extra, error_type, caplog):
    grid = make_grid(*node_configs(bob=extra))

    with pytest.raises(PartyRefused) as caught:
        run(count(3), grid)

    error = caught.value
    assert (error.party, error.code, error.detail) == ("bob", "internal error", "")
    assert error_type in caplog.text
    assert "secret value 4711" not in caplog.text
    assert "secret path 42" not in caplog.text


def test_failed_party_construction_is_refused_with_reason():
    grid = make_grid({"party-name": "ann"})

    with pytest.raises(PartyRefused, match=r"'ann' refused: a key is not set .* \(values\)"):
        run(count(3), grid, min_parties=1)


def test_reply_of_another_type_is_a_wire_error():
    grid = make_grid(*node_configs(bob={"impostor": True}))

    with pytest.raises(WireError, match="party 'bob': unexpected message 'NameReply'"):
        run(count(3), grid)


@pytest.mark.parametrize(
    "content",
    [
        RecordDict(),
        RecordDict({"frame": ConfigRecord({"frame": b"FNM"})}),
        RecordDict({"frame": ArrayRecord({"other": Array(np.zeros(3))})}),
        RecordDict({"frame": ArrayRecord({"frame": Array(np.zeros(3))})}),
        RecordDict({"frame": ArrayRecord({"frame": Array("uint8", (3,), "other", b"FNM")})}),
    ],
)
def test_missing_frame_is_a_wire_error_or_a_refusal(content):
    grid = make_grid(*node_configs())
    app = grid.app

    def reply_with_content(envelope, context):
        reply = app(envelope, context)
        if "ask" not in envelope.metadata.message_type:
            return reply
        return Envelope(content, reply_to=envelope)

    grid.app = reply_with_content
    with pytest.raises(WireError, match="party 'ann': frame ends early"):
        run(count(3), grid)
    grid.app = lambda envelope, context: app(
        _replace_frame(envelope, content) if "ask" in envelope.metadata.message_type else envelope,
        context,
    )
    with pytest.raises(PartyRefused, match="'ann' refused: malformed request"):
        run(count(3), grid)


def _replace_frame(envelope, content):
    """Return an envelope with other content but the same sender and id."""
    sender = {"sender": envelope.content["sender"]}
    changed = Envelope(
        RecordDict({**content, **sender}),
        envelope.metadata.dst_node_id,
        envelope.metadata.message_type,
    )
    changed.metadata.__dict__["_message_id"] = envelope.metadata.message_id
    return changed


@pytest.mark.parametrize("sender", [{}, {"sender": ConfigRecord({"version": "0.0.0"})}])
def test_coordinator_of_another_version_is_refused(sender):
    app = flower.client_app(build)
    request = {"frame": ArrayRecord({"frame": Array("uint8", (1,), "fedneighbors.frame", b"x")})}
    envelope = Envelope(RecordDict({**request, **sender}), 10, "query.ask")

    reply = app(envelope, Context(1, 10, node_configs()[0], RecordDict(), {}))

    refusal = Refusal("its fedneighbors is of another version than the coordinator's", __version__)
    assert reply.content["frame"]["frame"].data == encode(refusal)


def test_a_party_is_built_with_the_number_of_its_run():
    numbers = []

    def build_and_listen(config):
        numbers.append(config[flower.RUN_KEY])
        return build(config)

    app = flower.client_app(build_and_listen)
    envelope = Envelope(flower._pack(encode(CountRequest(3))), 10, "query.ask")
    for run_id in (7, 8):
        app(envelope, Context(run_id, 10, node_configs()[0], RecordDict(), {}))

    assert numbers == ["7", "8"]


def test_two_nodes_with_the_same_name_are_a_protocol_error():
    grid = make_grid(*node_configs(), {"party-name": "bob", "values": "1"})

    with pytest.raises(ProtocolError, match="two nodes are named 'bob'"):
        run(count(3), grid)


def test_two_nodes_registered_with_one_name_are_refused():
    grid = make_grid(*node_configs(), registered={10: "ann", 11: "bob", 12: "bob"})

    with pytest.raises(ProtocolError, match="two nodes are named 'bob'"):
        run(count(3), grid)


def test_name_of_another_registered_node_is_a_protocol_error():
    grid = make_grid(*node_configs(), registered={11: "bob", 12: "dan"})

    with pytest.raises(ProtocolError, match="the party-name of node 'dan' is 'cyd'"):
        run(count(3), grid)


def test_registered_nodes_are_not_asked_for_names():
    grid = make_grid(*node_configs(), registered={10: "dan", 11: "eve", 12: "flo"})

    outcome = run(count(3), grid)

    assert set(outcome.rounds[0].upload_bytes) == {"dan", "eve", "flo"}
    assert {action for _, action, _ in grid.pushed} == {"ask"}


def test_name_may_be_a_number():
    grid = make_grid({"party-name": 7, "values": "1"})

    assert run(count(2), grid, min_parties=1).result == (["hello 7"], 1, [0, 1])


@pytest.mark.parametrize("name", [{}, {"party-name": ""}, {"party-name": "a\nb"}])
def test_node_without_a_valid_name_is_refused(name):
    with pytest.raises(
        PartyRefused, match=r"'node 10' refused: party-name of the node is not 1 to"
    ):
        run(count(3), make_grid(name), min_parties=1)


def test_unnamed_node_is_skipped_if_enough_others_answer(caplog):
    grid = make_grid(*node_configs(), errors={(11, "introduce"): 5}, registered={11: "bob"})

    outcome = run(count(3), grid, min_parties=2)

    assert outcome.result[0] == ["hello ann", "hello cyd"]
    assert "continues without bob: its node is not connected any more" in caplog.text


def test_too_few_named_nodes_raise_party_missing():
    grid = make_grid(*node_configs(), errors={(11, "introduce"): 5, (12, "introduce"): 1})

    with pytest.raises(PartyMissing, match="no reply to the introduction") as caught:
        run(count(3), grid, min_parties=2)

    assert set(caught.value.missing) == {"node 11", "node 12"}


def test_too_few_connected_nodes_raise_after_the_timeout():
    with pytest.raises(FederationError, match=r"3 of at least 4 parties .* after 0\.3 s"):
        run(count(3), make_grid(*node_configs()), min_parties=4, timeout_s=0.3)


def test_run_starts_when_enough_nodes_are_connected():
    grid = make_grid(*node_configs())
    all_configs, n_nodes = dict(grid.configs), []
    grid.configs = {10: all_configs[10]}

    def get_nodes():
        n_nodes.append(len(grid.configs))
        nodes = ProcessGrid.get_nodes(grid)
        grid.configs = all_configs
        return nodes

    grid.get_nodes = get_nodes
    outcome = run(count(3), grid)

    assert n_nodes == [1, 3]
    assert outcome.result[1] == 4


@pytest.mark.parametrize(
    ("min_parties", "timeout_s"), [(0, 1.0), (-1, 1.0), (1, 0.0), (1, -1.0), (1, float("nan"))]
)
def test_limits_out_of_range_raise_value_error(min_parties, timeout_s):
    with pytest.raises(ValueError, match="positive min_parties, timeout_s"):
        run(count(3), make_grid(), min_parties=min_parties, timeout_s=timeout_s)


def test_lost_party_stays_missing_while_others_answer():
    def ask_twice():
        first = yield gather(CountRequest(2))
        second = yield gather(NameRequest("again"))
        return dict(first.missing), dict(second.missing), sorted(second.each)

    grid = make_grid(*node_configs(), errors={(10, "ask"): 5})
    missing = {"ann": "its node is not connected any more"}

    assert run(ask_twice(), grid).result == (missing, missing, ["bob", "cyd"])


def test_server_app_passes_outcome_and_config_to_finish():
    config = {"min-parties": 3, "timeout-s": 5, "n-bins": 3}
    calls = []
    app = flower.server_app(
        lambda config: count(config["n-bins"]),
        lambda outcome, config: calls.append((outcome.result, config)),
    )

    app(make_grid(*node_configs()), Context(1, 1, {}, RecordDict(), config))

    assert calls == [((["hello ann", "hello bob", "hello cyd"], 4, [1, 2, 1]), config)]


def test_server_app_does_not_call_finish_if_the_run_fails():
    config = {"min-parties": 3, "timeout-s": 5}
    calls = []
    app = flower.server_app(lambda config: count(3), lambda *call: calls.append(call))

    with pytest.raises(PartyRefused):
        app(
            make_grid(*node_configs(ann={"fault": "refuse"})),
            Context(1, 1, {}, RecordDict(), config),
        )

    assert calls == []


def test_missing_flwr_raises_only_on_use():
    code = """
import sys
sys.modules["flwr"] = None
import fedneighbors.federation, fedneighbors.federation._inprocess
from fedneighbors.errors import MissingExtraError
try:
    import fedneighbors.federation._flower
except MissingExtraError as error:
    print(error)
"""

    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)

    assert result.stderr == ""
    assert "'flwr' is not installed" in result.stdout
    assert "pip install 'fedneighbors[flower]'" in result.stdout


def test_importing_federation_does_not_load_flwr():
    code = """
import sys
import fedneighbors.federation, fedneighbors.federation._inprocess
print("flwr" in sys.modules)
"""

    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)

    assert result.stdout == "False\n"
