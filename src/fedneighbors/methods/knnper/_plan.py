"""What clients on nodes of their own are told before a training: network, memories, and its start.

In one process all clients are made with the same network. On nodes the coordinator first asks what
the tables look like, and then says what is trained, in words.
"""

from collections.abc import Mapping
from dataclasses import fields
from typing import Any, ClassVar

from fedneighbors.federation._messages import message
from fedneighbors.methods.knnper._settings import MemorySettings
from fedneighbors.neural._blueprint import Blueprint
from fedneighbors.tabular._schema import Schema

Scalar = str | int | float | bool | None

LEFT_OUT = {("n_discriminants", 0)}
"""Said by no plan, since most have none."""


def settings_parts(settings: MemorySettings) -> dict[str, Scalar]:
    """Return the settings of memories by name.

    Parameters
    ----------
    settings : MemorySettings
        Each a number, a word or None; candidates become words with commas between them. A codec
        that clients share is left out.

    Raises
    ------
    ValueError
        If one is something else, which a file does not hold.
    """
    parts = {
        name: ",".join(map(str, value)) if isinstance(value, tuple) else value
        for name, value in vars(settings).items()
        if name != "codec" and (name, value) not in LEFT_OUT
    }
    foreign = [k for k, v in parts.items() if not isinstance(v, str | int | float | None)]
    if foreign:
        raise ValueError(
            f"expected settings that a file can hold, got {foreign[0]}={parts[foreign[0]]!r}"
        )
    return parts


def read_settings(parts: Mapping[str, Scalar]) -> MemorySettings:
    """Return the settings that :func:`settings_parts` took apart.

    Raises
    ------
    ValueError
        If there is one that this release does not know, or a value is out of range.
    """
    known = {field.name for field in fields(MemorySettings)} - {"codec"}
    unknown = sorted(set(parts) - known)
    if unknown:
        raise ValueError(f"this release knows no setting {unknown[0]!r}; update fedneighbors")
    told: dict[str, Any] = dict(parts)
    if isinstance(told.get("n_neighbors"), str):
        told["n_neighbors"] = tuple(int(k) for k in told["n_neighbors"].split(","))
    if "," in str(told.get("metric")):
        told["metric"] = tuple(told["metric"].split(","))
    return MemorySettings(**told)


@message
class OpeningRequest:
    """Asks what a client's rows look like, before anything is said of what is trained."""

    reply: ClassVar[type] = Schema


@message
class PlanRequest:
    """Says what is trained, and asks for the schema once more; ``layout`` is the network's digest.

    ``network`` are the words of a :class:`~.networks.blueprint.Blueprint`.
    """

    network: str
    layout: str
    memory: Mapping[str, str | int | float | bool | None]

    reply: ClassVar[type] = Schema

    @classmethod
    def of(cls, blueprint: Blueprint, layout: str, settings: MemorySettings) -> "PlanRequest":
        """Return the plan of a network and of the memories that are built on it."""
        return cls(blueprint.words, layout, settings_parts(settings))

    @property
    def blueprint(self) -> Blueprint:
        """Of the network; ValueError if there is none."""
        return Blueprint.read(self.network)

    @property
    def settings(self) -> MemorySettings:
        """Of the memories; ValueError if they are none."""
        return read_settings(self.memory)
