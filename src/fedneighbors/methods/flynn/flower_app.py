"""FlyNN as a Flower app: ``flwr run examples/flower-flynn``.

The run configuration contains the coordinator's settings; the node configuration contains the
party's name and files: ``party-name``, ``data``, ``label`` and ``model-folder``. A node that sets
``epsilon`` accepts only private training on the terms in its own configuration, and charges it to
its ``ledger`` under the name in ``dataset``.
"""

from typing import Any

from fedneighbors.federation._flower import Config
from fedneighbors.federation._loop import Coordinator
from fedneighbors.methods.flynn._model import FlyNNModel
from fedneighbors.methods.flynn._settings import FlyNNSettings
from fedneighbors.methods.flynn.protocol import FlyNNParty, coordinate
from fedneighbors.privacy._policy import Privacy
from fedneighbors.tabular._app_config import (
    declared_rows,
    reserved_classes,
    table_apps,
    typed_or_none,
    typed_value,
)


def settings_from(config: Config) -> FlyNNSettings:
    """Parse the settings in a run configuration.

    Parameters
    ----------
    config : mapping
        One key per setting, with ``-`` for ``_``. ``"auto"`` derives a number from the tables or
        lets their rows choose, ``classes`` is a JSON list, ``expand = "none"`` disables the
        expansion.

    Raises
    ------
    ValueError
        If a value has the wrong type.
    """
    return FlyNNSettings(
        n_units=typed_or_none(config, "n-units", "auto", int),
        n_inputs=typed_or_none(config, "n-inputs", "auto", int),
        n_active=typed_or_none(config, "n-active", "auto", int),
        decay=_typed_or_auto(config, "decay", float),
        standardize=typed_value(config, "standardize", bool, str),
        expand=typed_or_none(config, "expand", "none", str),
        class_normalized=_typed_or_auto(config, "class-normalized", bool),
        seed=typed_value(config, "seed", int),
        classes=reserved_classes(config),
        declared_rows=declared_rows(config),
    )


def _typed_or_auto(config: Config, key: str, kind: type) -> Any:
    return "auto" if config.get(key) == "auto" else typed_value(config, key, kind)


def _coordinate(config: Config, privacy: Privacy | None) -> Coordinator[FlyNNModel]:
    if privacy is None:
        return coordinate(settings_from(config))
    privacy.check_delta()
    from fedneighbors.methods.flynn.private.protocol import coordinate_private

    return coordinate_private(settings_from(config), privacy)


def _party(table: dict[str, Any], _node: Config) -> FlyNNParty:
    return FlyNNParty(**table)


def _private_party(table: dict[str, Any], _node: Config) -> FlyNNParty:
    from fedneighbors.methods.flynn.private._party import PrivateFlyNNParty

    return PrivateFlyNNParty(**table)


_apps = table_apps("flynn", _coordinate, _party, _private_party)
# Flower searches the source for plain assignments to these names.
server = _apps[0]
client = _apps[1]
build_party = _apps[2]
