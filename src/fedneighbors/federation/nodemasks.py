"""What the configurations of a node and of a run say about masked sums."""

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedneighbors.federation.roles import Party, Refuse

if TYPE_CHECKING:
    from fedneighbors.federation.maskedsums import MaskedSums  # which needs an extra

__all__ = ["NODE_KEYS", "behind_masks", "sums_of"]

log = logging.getLogger(__name__)

NODE_KEYS = ("identity-key", "roster", "mask-state")
"""Private key (PEM), enrolled public keys (JSON), and a folder for what lasts between messages."""


def behind_masks(party: Party, config: Mapping[str, Any]) -> Party:
    """Return a party whose sums leave it only under masks, if its node is set up for that.

    Parameters
    ----------
    party : Party
        Holds the data.
    config : mapping
        The node's configuration. With any of ``identity-key``, ``roster`` and ``mask-state`` all
        three are needed; from then on a coordinator that asks for a sum in the plain is refused.

    Raises
    ------
    Refuse
        If a key is missing or a file cannot be used; the file is not named to the coordinator.
    """
    if not any(config.get(key) for key in NODE_KEYS):
        return party
    from fedneighbors.federation.maskedparty import MaskedParty
    from fedneighbors.federation.maskstore import FolderStore
    from fedneighbors.privacy.secagg.identity import Identity, Roster

    paths = {key: Path(str(_set(config, key))) for key in NODE_KEYS}
    try:
        return MaskedParty(
            party,
            identity=Identity.read(paths["identity-key"]),
            roster=Roster.read(paths["roster"]),
            store=FolderStore(paths["mask-state"]),
        )
    except (ValueError, OSError) as error:
        log.error("masked sums are not possible here: %s", error)
        raise Refuse("its key, roster or folder for masked sums cannot be used") from error


def _set(config: Mapping[str, Any], key: str) -> Any:
    if not config.get(key):
        raise Refuse("a key is not set in the configuration of the node", key)
    return config[key]


def sums_of(config: Mapping[str, Any]) -> "MaskedSums | None":
    """Return how a coordinator is to mask sums; None if they are formed in the plain.

    Parameters
    ----------
    config : mapping
        The run's configuration: ``secure-aggregation`` (true or false), ``roster`` (JSON file of
        public keys) and ``sum-threshold`` (0 or absent for the default).

    Raises
    ------
    ValueError
        If a value is of another type, or the roster cannot be read.
    """
    wanted = config.get("secure-aggregation", False)
    if not isinstance(wanted, bool):
        raise ValueError(f"expected secure-aggregation as true or false, got {wanted!r}")
    if not wanted:
        return None
    from fedneighbors.federation.maskedsums import MaskedSums
    from fedneighbors.privacy.secagg.identity import Roster

    threshold = config.get("sum-threshold", 0)
    if type(threshold) is not int or threshold < 0:
        raise ValueError(f"expected sum-threshold as an integer of 0 or more, got {threshold!r}")
    if not config.get("roster"):
        raise ValueError("secure-aggregation needs the roster, a file of the parties' public keys")
    try:
        roster = Roster.read(Path(str(config["roster"])))
    except OSError as error:
        raise ValueError(f"the roster cannot be read: {error}") from error
    return MaskedSums(roster, threshold=threshold or None)
