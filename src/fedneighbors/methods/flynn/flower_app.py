"""FlyNN as a Flower app: ``flwr run examples/flower-flynn``.

The run's configuration holds the settings of the coordinator, a node's configuration names the
party and its files: ``party-name``, ``data``, ``label`` and ``model-path``.
"""

import json
import logging
from pathlib import Path
from typing import Any

from fedneighbors.datasets import read_table
from fedneighbors.errors import DataError, MissingDataError, MissingExtraError
from fedneighbors.federation.flower import Config, client_app, server_app
from fedneighbors.federation.loop import Outcome
from fedneighbors.federation.roles import Coordinator, Refuse
from fedneighbors.methods.flynn.model import FlyNNModel
from fedneighbors.methods.flynn.protocol import FlyNNParty, FlyNNSettings, coordinate

__all__ = ["client", "server", "settings_from"]


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


def _coordinate(config: Config) -> Coordinator[FlyNNModel]:
    folder = Path(_typed(config, "model-path", str)).absolute().parent
    if not folder.is_dir():
        raise ValueError(f"model-path points into {folder}, which is not a folder; create it")
    return coordinate(settings_from(config))


def _finish(outcome: Outcome[FlyNNModel], config: Config) -> None:
    path = Path(str(config["model-path"])).absolute()
    outcome.result.save(path)
    logging.getLogger("flwr").info("fedneighbors: the model is in %s", path)


def _party(node: Config) -> FlyNNParty:
    label = str(node.get("label", "target"))
    data = _read(Path(_path(node, "data")), label)
    return FlyNNParty(
        str(node.get("party-name", "this party")),
        data.x,
        data.y,
        feature_names=data.feature_names,
        label_name=label,
        model_path=_path(node, "model-path"),
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
