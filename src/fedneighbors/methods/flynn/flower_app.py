"""FlyNN as a Flower app: ``flwr run examples/flower-flynn``.

The run's configuration holds the settings of the coordinator, a node's configuration names the
party and its files: ``party-name``, ``data``, ``label`` and ``model-path``. A node that sets
``epsilon`` agrees to a private training on these terms alone, charged to its ``ledger`` under
``dataset``.
"""

import logging
from typing import Any

from fedneighbors.errors import LedgerError
from fedneighbors.federation.flower import Config, client_app, server_app
from fedneighbors.federation.roles import Coordinator, Refuse
from fedneighbors.methods.flynn.model import FlyNNModel
from fedneighbors.methods.flynn.private.configuration import privacy_from
from fedneighbors.methods.flynn.protocol import FlyNNParty, FlyNNSettings, coordinate
from fedneighbors.privacy.policy import Privacy
from fedneighbors.tables.appconfig import (
    check_model_path,
    declared_rows,
    keep_model,
    node_value,
    party_table,
    reserved_classes,
    typed,
    unless,
)

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
    return FlyNNSettings(
        n_units=unless(config, "n-units", "auto", int),
        n_inputs=unless(config, "n-inputs", "auto", int),
        n_active=unless(config, "n-active", "auto", int),
        decay=unless(config, "decay", "auto", float),
        standardize=typed(config, "standardize", bool, str),
        expand=unless(config, "expand", "none", str),
        class_normalized=typed(config, "class-normalized", bool),
        seed=typed(config, "seed", int),
        classes=reserved_classes(config),
        declared_rows=declared_rows(config),
    )


def _coordinate(config: Config) -> Coordinator[FlyNNModel]:
    check_model_path(config)
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


def _party(node: Config) -> FlyNNParty:
    table = party_table(node)
    privacy = privacy_from(node)
    return FlyNNParty(**table) if privacy is None else _private_party(table, privacy, node)


def _private_party(table: dict[str, Any], privacy: Privacy, node: Config) -> FlyNNParty:
    """Return a party behind the ledger of its node, which must be there with a budget."""
    from fedneighbors.methods.flynn.private.party import PrivateFlyNNParty
    from fedneighbors.privacy.ledger import Ledger

    path = node_value(node, "ledger")
    try:
        ledger = Ledger(path, must_exist=True)
    except LedgerError as error:
        log.error("the ledger cannot be used: %s", error)
        raise Refuse("its ledger cannot be used") from error
    return PrivateFlyNNParty(
        **table,
        privacy=privacy,
        ledger=ledger,
        dataset=node_value(node, "dataset"),
        user=str(node.get("ledger-user", "coordinator")),
    )


server = server_app(_coordinate, keep_model)
client = client_app(_party)
