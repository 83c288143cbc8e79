"""Flower runtime: the coordinator as a ServerApp, each party as a ClientApp.

Frames are the same as in every other runtime; Flower transports them unchanged. A node starts a
new process for each message, so a party is rebuilt from its node's configuration each time and
keeps its state between rounds in its own files. The coordinator sends only requests to a party;
the files that a party reads are set by its own node's configuration.

A party's name is the one that its node was registered with (``flwr supernode register --name``),
which is bound to the node's key. If a node was registered without a name, all nodes are asked for
the ``party-name`` of their configuration. This takes one more round trip, and the name of that node
is not authenticated.
"""

import logging
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from fedneighbors._version import __version__
from fedneighbors.errors import FederationError, MissingExtraError, PartyMissing, ProtocolError
from fedneighbors.federation._loop import (
    Coordinator,
    FrameTransport,
    Outcome,
    read_reply,
    run_rounds,
)
from fedneighbors.federation._messages import encode, message
from fedneighbors.federation._reply_grid import MAX_GRID_S, REPLY_GRID_S, delay_to_grid, limit_work
from fedneighbors.federation._roles import Party, Refused, make_refusal, report_failure, serve
from fedneighbors.records import Round

if TYPE_CHECKING:
    from fedneighbors.federation._masked_sums import MaskedSums  # which needs an extra

try:
    from flwr.app import DEFAULT_TTL, Array, ArrayRecord, ConfigRecord, Context, RecordDict
    from flwr.app import Message as Envelope
    from flwr.clientapp import ClientApp
    from flwr.serverapp import Grid, ServerApp
except ModuleNotFoundError as error:
    raise MissingExtraError("flwr", "flower") from error


log = logging.getLogger(__name__)
R = TypeVar("R")

Config = Mapping[str, str | int | float | bool]
"""Configuration of a run or a node, as provided by Flower."""

RUN_KEY = "fedneighbors-run"
"""Key of the run's number in the configuration with which a node's party is built."""

POLL_S = 0.2  # seconds between pulls, little in an exchange for which nodes start processes
MAX_NAME_LENGTH = 100  # characters: one line of a log; must equal that of secure_sum/_keys.py

_FRAME = "frame"
_SENDER = "sender"
_KIND = "fedneighbors.frame"  # serialization type of the array that is a frame
_REASONS = {  # by flwr.common.constant.ErrorCode; Flower's texts may quote a node's exception
    1: "its node could not load the app; install the same fedneighbors there",
    2: "the app failed on its node",
    3: "the request to it was lost",
    4: "its reply was lost",
    5: "its node is not connected any more",
    7: "its node does not trust the app",
    8: "the process of the app ended on its node",
}


@message
class Introduction:
    """Party name from a node's configuration."""

    name: str

    def __post_init__(self) -> None:
        if not _is_valid_name(self.name):
            raise ValueError(
                f"a party's name must have 1 to {MAX_NAME_LENGTH} printable characters"
            )


def _is_valid_name(text: str) -> bool:
    return 0 < len(text) <= MAX_NAME_LENGTH and text.isprintable()


@message
class IntroductionRequest:
    """Request for the name of a node's party."""

    reply: ClassVar[type] = Introduction


def client_app(build: Callable[[Config], Party]) -> ClientApp:
    """Return the app that runs a party on its node.

    Parameters
    ----------
    build : callable
        Builds the party from its node's configuration (``--node-config``) and the run's number at
        the key ``RUN_KEY``, once per message.
        A :class:`~fedneighbors.federation.Refused` that it raises is sent to the coordinator; all
        other exceptions are sent as one code.

    Returns
    -------
    ClientApp
        A node registered without a name must set one in its configuration: ``party-name="..."``.
        A node whose configuration sets ``identity-key``, ``roster`` and ``mask-state`` sends
        summable replies only as masked sums. The replies of a node that sets ``epsilon`` wait for
        a grid of times with a step of ``reply-grid-s`` seconds, 1 by default, from the request. A
        node's process ends if a request takes longer than ``max-seconds``, by default 12 hours,
        after which Flower would discard the reply.
    """
    app = ClientApp()

    @app.query("introduce")
    def introduce(envelope: Envelope, context: Context) -> Envelope:
        return _answer(envelope, lambda _: encode(Introduction(_party_name(context.node_config))))

    @app.query("ask")
    def ask(envelope: Envelope, context: Context) -> Envelope:
        config = {**context.node_config, RUN_KEY: str(context.run_id)}

        def make_reply(frame: bytes) -> bytes:
            has_budget = bool(config.get("epsilon"))
            grid_s = _seconds(config, "reply-grid-s", REPLY_GRID_S, MAX_GRID_S) * has_budget
            limit_s = _seconds(config, "max-seconds", DEFAULT_TTL, DEFAULT_TTL)
            with limit_work(limit_s), delay_to_grid(grid_s):  # both include reading the table
                return serve(build_party(config), frame)

        return _answer(envelope, make_reply)

    def build_party(config: Config) -> Party:
        return wrap_masked(build(config), config)

    return app


def _answer(envelope: Envelope, make_reply: Callable[[bytes], bytes]) -> Envelope:
    """Answer an envelope.

    Every exception becomes a refusal, because Flower would send the text of an exception.
    """
    try:
        _check_version(envelope.content)
        frame = make_reply(_unpack(envelope.content))
    except Refused as refused:
        frame = encode(make_refusal(refused))
    except Exception as error:
        frame = encode(report_failure(error))
    return Envelope(_pack(frame), reply_to=envelope)


def _seconds(node_config: Config, key: str, default: float, maximum: float) -> float:
    """Return a number of seconds from a node's configuration."""
    value = node_config.get(key, default)
    if type(value) not in (int, float) or not 0 < float(value) <= maximum:
        raise Refused(f"{key} of the node is not a number of seconds above 0, at most {maximum:g}")
    return float(value)


def _check_version(content: RecordDict) -> None:
    """Refuse a coordinator of another version.

    Results of different versions might differ in the last bits.
    """
    record: Any = content.get(_SENDER)
    version = record.get("version") if isinstance(record, ConfigRecord) else None
    if version != __version__:
        raise Refused("its fedneighbors is of another version than the coordinator's", __version__)


def _party_name(node_config: Config) -> str:
    name = str(node_config.get("party-name", ""))
    if not _is_valid_name(name):
        raise Refused(f"party-name of the node is not 1 to {MAX_NAME_LENGTH} printable characters")
    return name


def server_app(
    coordinate: Callable[[Config], Coordinator[R]],
    finish: Callable[[Outcome[R], Config], None],
) -> ServerApp:
    """Return the app that runs a coordinator.

    Parameters
    ----------
    coordinate : callable
        Creates the coordinator from the configuration of the run.
    finish : callable
        Called with the outcome and the configuration; not called if the run fails.

    Returns
    -------
    ServerApp
        The run's configuration sets ``min-parties``, the minimum number of parties to start with,
        and ``timeout-s``, the maximum wait for them and for the replies of each round. With
        ``secure-aggregation = true`` sums are masked; ``roster`` is then the file of the parties'
        public keys and ``sum-threshold`` the minimum number of parties in a sum, 0 for the default.
    """
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        config = context.run_config
        outcome = run(
            grid,
            coordinate(config),
            min_parties=int(config["min-parties"]),
            timeout_s=float(config["timeout-s"]),
            on_round=_log_round,
            sums=parse_masked_sums(config),
        )
        finish(outcome, config)

    return app


def run(
    grid: Grid,
    coordinator: Coordinator[R],
    *,
    min_parties: int,
    timeout_s: float,
    on_round: Callable[[Round], None] | None = None,
    sums: "MaskedSums | None" = None,
) -> Outcome[R]:
    """Run a coordinator over Flower's nodes; return its result and rounds.

    Parameters
    ----------
    grid : Grid
        Flower's connection to the nodes.
    coordinator : generator
        The coordinator.
    min_parties : int
        Start when this many nodes are connected; all nodes connected at that moment take part.
    timeout_s : float
        Maximum wait for the nodes, and for the replies of each round.
    on_round : callable, optional
        Called with each round's record. The request for the parties' names is not a round.
    sums : MaskedSums, optional
        Secure aggregation. If None, the coordinator receives the replies and adds them up.

    Raises
    ------
    AggregationError
        If a masked sum cannot be formed.
    FederationError
        If too few nodes connect in time.
    PartyMissing, PartyRefused, WireError, ProtocolError
        As raised by the coordinator and :func:`run_rounds`; ``ProtocolError`` also if two nodes
        have the same name, a node's name differs from its registered one, or a node answers twice.
    """
    if min_parties < 1 or not timeout_s > 0:
        raise ValueError(
            f"expected positive min_parties, timeout_s; got {min_parties}, {timeout_s}"
        )
    nodes = _find_parties(grid, min_parties=min_parties, timeout_s=timeout_s)
    names = {node: name for name, node in nodes.items()}

    def exchange(frames: Mapping[str, bytes]) -> tuple[dict[str, bytes], dict[str, str]]:
        by_node = {nodes[name]: frame for name, frame in frames.items()}
        answers, missing = _exchange(grid, "ask", by_node, labels=names, timeout_s=timeout_s)
        return (
            {names[node]: answer for node, answer in answers.items()},
            {names[node]: reason for node, reason in missing.items()},
        )

    transport = FrameTransport(exchange, tuple(sorted(nodes)))
    return run_rounds(coordinator, transport, on_round=on_round, sums=sums)


def _find_parties(grid: Grid, *, min_parties: int, timeout_s: float) -> dict[str, int]:
    """Map the parties' names to nodes."""
    registered = _wait_for_nodes(grid, min_parties=min_parties, timeout_s=timeout_s)
    if not all(registered.values()):
        return _ask_names(grid, registered, min_parties=min_parties, timeout_s=timeout_s)
    return _check_unique_names(registered)


def _ask_names(
    grid: Grid, registered: Mapping[int, str], *, min_parties: int, timeout_s: float
) -> dict[str, int]:
    """Ask the nodes for their party names and map names to nodes."""
    request = IntroductionRequest()
    frames = dict.fromkeys(registered, encode(request))
    labels = {node: name or f"node {node}" for node, name in registered.items()}
    answers, missing = _exchange(grid, "introduce", frames, labels=labels, timeout_s=timeout_s)
    unnamed = {labels[node]: reason for node, reason in missing.items()}
    if len(answers) < min_parties:
        raise PartyMissing(unnamed, "the introduction")
    for label, reason in unnamed.items():
        log.warning("the run continues without %s: %s", label, reason)
    names: dict[int, str] = {}
    for node, frame in sorted(answers.items()):
        names[node] = read_reply(labels[node], request, frame).name
        if registered[node] not in ("", names[node]):
            raise ProtocolError(
                f"the party-name of node {registered[node]!r} is {names[node]!r}; "
                "set it to the registered name"
            )
    return _check_unique_names(names)


def _check_unique_names(names: Mapping[int, str]) -> dict[str, int]:
    nodes: dict[str, int] = {}
    for node, name in names.items():
        if name in nodes:
            raise ProtocolError(f"two nodes are named {name!r}; rename one of them")
        nodes[name] = node
    return nodes


def _wait_for_nodes(grid: Grid, *, min_parties: int, timeout_s: float) -> dict[int, str]:
    """Wait for the nodes and return their registered names.

    A node registered without a name has an empty one.
    """
    deadline = time.monotonic() + timeout_s
    while len(nodes := list(grid.get_nodes())) < min_parties:
        if time.monotonic() > deadline:
            raise FederationError(
                f"{len(nodes)} of at least {min_parties} parties were connected after "
                f"{timeout_s:g} s; start the others, or lower min-parties"
            )
        time.sleep(POLL_S)
    return {node.node_id: node.name for node in nodes}


def _exchange(
    grid: Grid,
    action: str,
    frames: Mapping[int, bytes],
    *,
    labels: Mapping[int, str],
    timeout_s: float,
) -> tuple[dict[int, bytes], dict[int, str]]:
    """Send frames to nodes; return the answers and the missing nodes.

    Each missing node has a reason.
    """
    answers: dict[int, bytes] = {}
    missing: dict[int, str] = {}
    sent = _send(grid, action, frames, timeout_s=timeout_s)
    waiting = dict(sent)
    unsent = set(frames) - set(waiting.values())
    deadline = time.monotonic() + timeout_s
    while waiting and time.monotonic() < deadline:
        for reply in grid.pull_messages(list(waiting)):
            request_id = reply.metadata.reply_to_message_id
            node = sent.get(request_id)
            if node is None:  # not a reply to one of these requests
                continue
            if waiting.pop(request_id, None) is None:  # answered before
                if not reply.has_error() and _unpack(reply.content) == answers.get(node):
                    continue
                raise ProtocolError(f"party {labels[node]!r} answered one request twice")
            if reply.has_error():
                code = reply.error.code
                missing[node] = _REASONS.get(code, f"Flower reports error {code}")
            else:
                answers[node] = _unpack(reply.content)
        if waiting:
            time.sleep(POLL_S)
    missing.update(dict.fromkeys(unsent, "the request could not be sent"))
    missing.update(dict.fromkeys(waiting.values(), f"no reply within {timeout_s:g} s"))
    return answers, missing


def _send(
    grid: Grid, action: str, frames: Mapping[int, bytes], *, timeout_s: float
) -> dict[str, int]:
    """Send a frame to each node and map message ids to nodes."""
    contents = {id(frame): _pack(frame) for frame in frames.values()}  # pack a shared frame once
    # a reply expires with its request, by the clock of the node: DEFAULT_TTL (12 h) is slack for it
    envelopes = [
        Envelope(contents[id(frame)], node, f"query.{action}", ttl=DEFAULT_TTL + timeout_s)
        for node, frame in frames.items()
    ]
    # None for a message that was not sent; empty if none was, for instance because of their size
    ids: Iterable[str | None] = grid.push_messages(envelopes)
    return {id_: node for id_, node in zip(ids, frames, strict=False) if id_}


def _pack(frame: bytes) -> RecordDict:
    """Wrap a frame in a record without a copy or header.

    Flower sends the array in chunks.
    """
    array = Array(dtype="uint8", shape=(len(frame),), stype=_KIND, data=frame)
    sender = ConfigRecord({"version": __version__})
    return RecordDict({_FRAME: ArrayRecord({_FRAME: array}), _SENDER: sender})


def _unpack(content: RecordDict) -> bytes:
    """Return the frame of a record, or empty bytes if absent.

    :func:`decode` rejects empty bytes.
    """
    record: Any = content.get(_FRAME)
    array = record.get(_FRAME) if isinstance(record, ArrayRecord) else None
    return array.data if isinstance(array, Array) and array.stype == _KIND else b""


def _log_round(record: Round) -> None:
    logging.getLogger("flwr").info(  # the log that `flwr log` shows
        "fedneighbors: round %d, %s: %d parties answered, %d bytes up, %d bytes down, %.1f s",
        record.index + 1,
        record.request,
        len(record.upload_bytes),
        sum(record.upload_bytes.values()),
        sum(record.download_bytes.values()),
        record.seconds,
    )


NODE_KEYS = ("identity-key", "roster", "mask-state")
"""Keys of the paths of private key (PEM), roster (JSON) and folder for state between messages."""


def wrap_masked(party: Party, config: Mapping[str, Any]) -> Party:
    """Wrap a party for masked sums if its node configures them.

    Parameters
    ----------
    party : Party
        The party to wrap, which holds the data.
    config : mapping
        The node's configuration. If any of ``identity-key``, ``roster`` and ``mask-state`` is set,
        all three are required, and requests for unmasked sums are refused.

    Raises
    ------
    Refused
        If one of the three is not set or not usable; the coordinator does not learn the path.
    """
    if not any(config.get(key) for key in NODE_KEYS):
        return party
    from fedneighbors.federation._masked_party import MaskedParty
    from fedneighbors.federation._stores import FolderStore
    from fedneighbors.secure_sum._keys import Identity, Roster

    paths = {key: Path(str(_get_required(config, key))) for key in NODE_KEYS}
    try:
        return MaskedParty(
            party,
            identity=Identity.read(paths["identity-key"]),
            roster=Roster.read(paths["roster"]),
            store=FolderStore(paths["mask-state"]),
        )
    except (ValueError, OSError) as error:
        log.error("this party cannot form masked sums: %s", error)
        raise Refused("its key, roster or folder for masked sums cannot be used") from error


def _get_required(config: Mapping[str, Any], key: str) -> Any:
    if not config.get(key):
        raise Refused("a key is not set in the configuration of the node", key)
    return config[key]


def parse_masked_sums(config: Mapping[str, Any]) -> "MaskedSums | None":
    """Return the secure aggregation of a run, or None if off.

    Parameters
    ----------
    config : mapping
        The run's configuration: ``secure-aggregation`` (true or false), ``roster`` (JSON file of
        public keys) and ``sum-threshold`` (0 or absent for the default).

    Raises
    ------
    ValueError
        If a value has the wrong type or the roster cannot be read.
    """
    masked = config.get("secure-aggregation", False)
    if not isinstance(masked, bool):
        raise ValueError(f"expected secure-aggregation as true or false, got {masked!r}")
    if not masked:
        return None
    from fedneighbors.federation._masked_sums import MaskedSums
    from fedneighbors.secure_sum._keys import Roster

    threshold = config.get("sum-threshold", 0)
    if type(threshold) is not int or threshold < 0:
        raise ValueError(f"expected sum-threshold as an integer of 0 or more, got {threshold!r}")
    if not config.get("roster"):
        raise ValueError(
            "secure-aggregation needs the roster, the file of the parties' public keys"
        )
    try:
        roster = Roster.read(Path(str(config["roster"])))
    except OSError as error:
        raise ValueError(f"the roster cannot be read: {error}") from error
    return MaskedSums(roster, threshold=threshold or None)
