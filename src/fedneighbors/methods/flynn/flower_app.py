"""FlyNN as a Flower app: ``flwr run examples/flower-flynn``.

The run's configuration holds the settings of the coordinator, a node's configuration names the
party and its files: ``party-name``, ``data``, ``label`` and ``model-path``. A node that sets
``epsilon`` agrees to a private training on these terms alone, charged to its ``ledger`` under
``dataset``.
"""

import json
import logging
from pathlib import Path
from typing import Any

from fedneighbors.datasets import read_table
from fedneighbors.errors import DataError, LedgerError, MissingDataError, MissingExtraError
from fedneighbors.federation.flower import Config, client_app, server_app
from fedneighbors.federation.loop import Outcome
from fedneighbors.federation.roles import Coordinator, Refuse
from fedneighbors.methods.flynn.model import FlyNNModel
from fedneighbors.methods.flynn.private.configuration import privacy_from
from fedneighbors.methods.flynn.protocol import FlyNNParty, FlyNNSettings, coordinate
from fedneighbors.privacy.policy import Privacy

__all__ = ["client", "server", "settings_from"]

log = logging.getLogger(__name__)


def settings_from(config: Config) -> FlyNNSettings:
    """Return the settings that the configuration of a run describes.

    Parameters
    ----------
    config : mapping
        One key per setting, with ``-`` for ``_``. ``"auto"`` leaves a number to be derived,
        ``classes`` is a JSON list, ``expand = "none"`` expands nothing.

    Raises
    ------
    ValueError
        If a value is of another type than its setting.
    """
    expand = _typed(config, "expand", str)
    return FlyNNSettings(
        n_units=_derived(config, "n-units", int),
        n_inputs=_derived(config, "n-inputs", int),
        n_active=_derived(config, "n-active", int),
        decay=_derived(config, "decay", int, float),
        standardize=_typed(config, "standardize", bool, str),
        expand=None if expand == "none" else expand,
        class_normalized=_typed(config, "class-normalized", bool),
        seed=_typed(config, "seed", int),
        classes=_classes(_typed(config, "classes", str)),
        declared_rows=_declared(config.get("declared-rows", "")),
    )


def _typed(config: Config, key: str, *kinds: type) -> Any:
    value = config[key]
    if type(value) not in kinds:
        expected = " or ".join(kind.__name__ for kind in kinds)
        raise ValueError(f"expected {key} of the run configuration to be {expected}, got {value!r}")
    return value


def _derived(config: Config, key: str, *kinds: type) -> Any:
    return None if config[key] == "auto" else _typed(config, key, *kinds)


def _classes(text: str) -> tuple[str | int | float | bool, ...]:
    try:
        labels = json.loads(text)
    except json.JSONDecodeError as error:
        raise ValueError(f"expected classes as a JSON list such as [0, 1], got {text!r}") from error
    if not isinstance(labels, list) or any(type(x) not in (str, int, float, bool) for x in labels):
        raise ValueError(f"expected classes as a JSON list of labels, got {text!r}")
    return tuple(labels)


def _declared(text: Any) -> dict[str, int]:
    try:
        rows = json.loads(text or "{}")
    except (json.JSONDecodeError, TypeError) as error:
        raise ValueError(
            f'expected declared-rows as a JSON object such as {{"north": 500}}, got {text!r}'
        ) from error
    if not isinstance(rows, dict) or any(type(n) is not int or n < 0 for n in rows.values()):
        raise ValueError(f"expected declared-rows as numbers of rows by party, got {text!r}")
    return rows


def _coordinate(config: Config) -> Coordinator[FlyNNModel]:
    folder = Path(_typed(config, "model-path", str)).absolute().parent
    if not folder.is_dir():
        raise ValueError(f"model-path points into {folder}, which is not a folder; create it")
    privacy = privacy_from(config)
    if privacy is None:
        return coordinate(settings_from(config))
    if privacy.mechanism == "central" and not config.get("secure-aggregation"):
        raise ValueError(
            "mechanism 'central' adds shares of noise that protect only a masked sum; set "
            "secure-aggregation=true, or mechanism='local'"
        )
    from fedneighbors.methods.flynn.private.protocol import coordinate_private

    return coordinate_private(settings_from(config), privacy)


def _finish(outcome: Outcome[FlyNNModel], config: Config) -> None:
    path = Path(str(config["model-path"])).absolute()
    outcome.result.save(path)
    logging.getLogger("flwr").info("fedneighbors: the model is in %s", path)


def _party(node: Config) -> FlyNNParty:
    label = str(node.get("label", "target"))
    data = _read(Path(_path(node, "data")), label)
    table: dict[str, Any] = {
        "name": str(node.get("party-name", "this party")),
        "x": data.x,
        "y": data.y,
        "feature_names": data.feature_names,
        "label_name": label,
        "model_path": _path(node, "model-path"),
    }
    privacy = privacy_from(node)
    return FlyNNParty(**table) if privacy is None else _private_party(table, privacy, node)


def _private_party(table: dict[str, Any], privacy: Privacy, node: Config) -> FlyNNParty:
    """Return a party behind the ledger of its node, which must be there with a budget."""
    from fedneighbors.methods.flynn.private.party import PrivateFlyNNParty
    from fedneighbors.privacy.ledger import Ledger

    path = _path(node, "ledger")
    try:
        ledger = Ledger(path, must_exist=True)
    except LedgerError as error:
        log.error("the ledger cannot be used: %s", error)
        raise Refuse("its ledger cannot be used") from error
    return PrivateFlyNNParty(
        **table,
        privacy=privacy,
        ledger=ledger,
        dataset=_path(node, "dataset"),
        user=str(node.get("ledger-user", "coordinator")),
    )


def _read(path: Path, label: str) -> Any:
    try:
        return read_table(path, label=label)
    except MissingDataError as error:
        raise Refuse("its data file does not exist") from error
    except MissingExtraError as error:
        raise Refuse("a package is not installed", error.package) from error
    except DataError as error:
        raise Refuse("its data file cannot be used; read it with read_table there") from error


def _path(node: Config, key: str) -> str:
    if not node.get(key):
        raise Refuse("a key is not set in the configuration of the node", key)
    return str(node[key])


server = server_app(_coordinate, _finish)
client = client_app(_party)
