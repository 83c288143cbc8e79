"""Federated boosting as a Flower app: ``flwr run examples/flower-boosting``.

The configuration of the run holds the settings of the coordinator. The configuration of a node
holds the party's name (``party-name``), its files (``data``, ``model-folder``) and its label column
(``label``). There is no privacy budget; sums may be masked.
"""

import json
from typing import Any

from fedneighbors.baselines.boosting._model import BoostingModel
from fedneighbors.baselines.boosting._party import BoostingParty
from fedneighbors.baselines.boosting._protocol import BoostingSettings, coordinate
from fedneighbors.federation._flower import Config
from fedneighbors.federation._loop import Coordinator
from fedneighbors.federation._roles import Party, Refused
from fedneighbors.privacy._policy import Privacy
from fedneighbors.tabular._app_config import table_apps, typed_or_none, typed_value


def settings_from(config: Config) -> BoostingSettings:
    """Return the settings in the configuration of a run.

    Parameters
    ----------
    config : mapping
        One key per setting, with ``-`` for ``_``. ``max-depth = "none"`` sets no limit,
        ``class-weight`` is ``"none"``, ``"balanced"`` or a JSON object of weights by label.

    Raises
    ------
    ValueError
        If a value has the wrong type or is out of range.
    """
    return BoostingSettings(
        task=typed_value(config, "task", str),
        learning_rate=typed_value(config, "learning-rate", float),
        max_iter=typed_value(config, "max-iter", int),
        max_leaf_nodes=typed_value(config, "max-leaf-nodes", int),
        max_depth=typed_or_none(config, "max-depth", "none", int),
        min_samples_leaf=typed_value(config, "min-samples-leaf", int),
        l2_regularization=typed_value(config, "l2-regularization", float),
        max_bins=typed_value(config, "max-bins", int),
        class_weight=_class_weight(config),
        early_stopping=typed_value(config, "early-stopping", bool, str),
        validation_fraction=typed_value(config, "validation-fraction", float),
        n_iter_no_change=typed_value(config, "n-iter-no-change", int),
        tol=typed_value(config, "tol", float),
        seed=typed_value(config, "seed", int),
    )


def _class_weight(config: Config) -> Any:
    text = typed_or_none(config, "class-weight", "none", str)
    if text is None or text == "balanced":
        return text
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise ValueError(
            f'expected class-weight "none", "balanced" or a JSON object such as {{"ill": 5}}, '
            f"got {text!r}"
        ) from error


def _coordinate(config: Config, privacy: Privacy | None) -> Coordinator[BoostingModel]:
    if privacy is not None:
        raise ValueError("boosting has no privacy budget; leave epsilon out")
    return coordinate(settings_from(config))


def _make_party(table: dict[str, Any], node: Config) -> Party:
    if node.get("epsilon"):
        raise Refused("this node sets epsilon, and boosting has no privacy budget")
    return BoostingParty(**table)


_apps = table_apps("boosting", _coordinate, _make_party, keep_missing=True)
# Flower searches the source for plain assignments of these names.
server = _apps[0]
client = _apps[1]
build_party = _apps[2]
