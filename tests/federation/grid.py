"""Flower grid whose nodes are in this process."""

from flwr.app import Context, Error, RecordDict
from flwr.app import Message as Envelope
from flwr.proto.node_pb2 import NodeInfo
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity

from fedneighbors.secure_sum._keys import Identity, Roster

TaskIdentity.run_id = TaskIdentity.node_id = TaskIdentity.task_id = 1  # as Flower sets them


def model_folder(folder, name):
    """Return the folder of a machine's models; create it if needed."""
    path = folder / name
    path.mkdir(exist_ok=True)
    return path


def write_keys(folder, names):
    """Write keys and ``roster.json`` for masked sums; return the configuration of each node."""
    keys = {name: Identity.new() for name in names}
    roster = Roster({name: key.public for name, key in keys.items()})
    (folder / "roster.json").write_text(roster.to_json())
    for name, key in keys.items():
        key.write(folder / f"{name}.pem")
    return {
        name: {
            "identity-key": str(folder / f"{name}.pem"),
            "roster": str(folder / "roster.json"),
            "mask-state": str(folder / f"{name}-masks"),
        }
        for name in names
    }


class ProcessGrid(Grid):
    """Grid whose nodes run the client app in this process when a message is pushed.

    ``registered`` maps nodes to registered names. ``silent``, ``errors`` and ``unsent`` name pairs
    of node and action: no reply, a reply with a Flower error code, a message that is not sent.
    """

    run = None

    def __init__(self, app, *configs, registered=None, silent=(), errors=None, unsent=()):
        self.configs = dict(enumerate(configs, start=10))
        self._registered = registered or {}
        self._silent, self._errors, self._unsent = silent, errors or {}, unsent
        self._replies = {}
        self.app = app
        self.pushed = []

    @property
    def n_exchanges(self):
        """Return the number of exchanges with the first node."""
        return sum(node == 10 and action == "ask" for node, action, _ in self.pushed)

    def get_nodes(self):
        return [NodeInfo(node_id=n, name=self._registered.get(n, "")) for n in self.configs]

    def push_messages(self, envelopes):
        return [self._push(number, envelope) for number, envelope in enumerate(envelopes)]

    def _push(self, number, envelope):
        node = envelope.metadata.dst_node_id
        action = envelope.metadata.message_type.removeprefix("query.")
        if (node, action) in self._unsent:
            return None
        message_id = f"{action} {node} {len(self.pushed)}"
        envelope.metadata.__dict__["_message_id"] = message_id
        self.pushed.append((node, action, envelope))
        if (node, action) in self._errors:
            error = Error(self._errors[node, action], "text of the node with value 4711")
            self._replies[message_id] = Envelope(error, reply_to=envelope)
        elif (node, action) not in self._silent:
            context = Context(1, node, self.configs[node], RecordDict(), {"secret": "of the run"})
            self._replies[message_id] = self.app(envelope, context)
        return message_id

    def pull_messages(self, message_ids):
        return [self._replies.pop(id_) for id_ in message_ids if id_ in self._replies]

    def set_run(self, run): ...
    def create_message(self, *args, **kwargs): ...
    def get_node_ids(self): ...
    def send_and_receive(self, messages, *, timeout=None): ...
