"""FedPNN as a Flower app: ``flwr run examples/flower-fedpnn``.

The configuration of the run holds the settings of the coordinator. The configuration of a node
holds the party's name (``party-name``), its files (``data``, ``model-folder``) and its label column
(``label``). In training without a budget, ``min-count`` of a node is the minimum number of rows
behind every value that its party sends; the party refuses runs with a lower ``min-count``. A node
that sets ``epsilon`` accepts only private training. Its configuration then also holds the other
privacy terms, including the bounds of the columns; releases are charged to the budget of the data
set ``dataset`` in the file ``ledger``.
"""

import logging
from dataclasses import fields
from typing import Any

from fedneighbors.federation._flower import Config
from fedneighbors.federation._loop import Coordinator
from fedneighbors.federation._messages import Message
from fedneighbors.federation._roles import Party, Refused
from fedneighbors.methods.fedpnn._party import CentersReply, FedPNNParty
from fedneighbors.methods.fedpnn.protocol import FedPNNSettings, coordinate
from fedneighbors.privacy._policy import Privacy
from fedneighbors.tabular._app_config import (
    reserved_classes,
    table_apps,
    typed_or_none,
    typed_value,
)

log = logging.getLogger(__name__)

DEFAULT_MIN_COUNT = 5
"""Default of ``min-count`` of a node."""


def settings_from(config: Config) -> FedPNNSettings:
    """Return the settings in the configuration of a run.

    Parameters
    ----------
    config : mapping
        One key per setting, with ``-`` for ``_``. ``client-threshold = "auto"`` lets each party
        choose its threshold, ``server-threshold = "none"`` keeps every center, ``"none"`` for
        ``normalize`` or ``metric`` turns it off, ``n-features-to-select = "all"`` keeps all
        columns, ``classes`` is a JSON list.

    Raises
    ------
    ValueError
        If a value has the wrong type or is out of range.
    """
    loo = config.get("sigma") == "loo"
    return FedPNNSettings(
        client_threshold=typed_or_none(config, "client-threshold", "auto", float),
        server_threshold=typed_or_none(config, "server-threshold", "none", float),
        normalize=typed_or_none(config, "normalize", "none", str),
        frame=typed_value(config, "frame", str),
        classwise=typed_value(config, "classwise", bool),
        metric=typed_or_none(config, "metric", "none", str),
        min_count=typed_value(config, "min-count", int),
        sigma="loo" if loo else typed_value(config, "sigma", float),
        activation=typed_value(config, "activation", str),
        factor=typed_value(config, "factor", float),
        ridge=typed_value(config, "ridge", float),
        boost=typed_value(config, "boost", float),
        n_knots=typed_value(config, "n-knots", int),
        means=typed_value(config, "means", bool),
        classes=reserved_classes(config),
        n_features_to_select=typed_or_none(config, "n-features-to-select", "all", int),
    )


def _coordinate(config: Config, privacy: Privacy | None) -> Coordinator[Any]:
    settings = settings_from(config)
    if privacy is None:
        return coordinate(settings)
    _check_private_settings(settings)
    from fedneighbors.methods.fedpnn.private.protocol import coordinate_private

    return coordinate_private(privacy)


def _check_private_settings(settings: FedPNNSettings) -> None:
    """Raise if a setting differs from its default; private training uses none."""
    changed = [f.name for f in fields(settings) if getattr(settings, f.name) != f.default]
    if changed:
        names = ", ".join(name.replace("_", "-") for name in changed)
        raise ValueError(
            f"private training takes no {names}: it sums noised vectors instead of "
            "clustering; leave them at their defaults; the schema declares labels"
        )


class _ExposureLoggingParty(FedPNNParty):
    """A party that writes its exposure to Flower's log."""

    def answer(self, request: Message) -> Message:
        reply = super().answer(request)
        if isinstance(reply, CentersReply):
            logging.getLogger("flwr").info("fedneighbors: party %s: %s", self.name, self.exposure)
        return reply


def _read_min_count(node: Config) -> int:
    min_count = node.get("min-count", DEFAULT_MIN_COUNT)
    if type(min_count) is not int or min_count < 1:
        raise Refused("min-count of the node must be an integer of 1 or more")
    return min_count


def _make_party(arguments: dict[str, Any], node: Config) -> Party:
    return _ExposureLoggingParty(**arguments, min_count=_read_min_count(node))


def _make_private_party(arguments: dict[str, Any], node: Config) -> Party:
    from fedneighbors.methods.fedpnn.private._party import PrivateFedPNNParty

    _read_min_count(node)  # refuse an invalid value, although private training does not use it
    try:
        return PrivateFedPNNParty(**arguments)
    except ValueError as error:
        log.error("invalid privacy terms: %s", error)
        raise Refused("its privacy terms have no bounds or classes that fit its table") from error


_apps = table_apps("fedpnn", _coordinate, _make_party, _make_private_party, keep_missing=True)
# Flower searches the source for plain assignments of these names.
server = _apps[0]
client = _apps[1]
build_party = _apps[2]
