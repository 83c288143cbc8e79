"""What clients on nodes of their own are told before a training: network, memories, and its start.

In one process all clients are made with the same network. On nodes the coordinator first asks what
the tables look like, and then says what is trained, in words.
"""

from collections.abc import Mapping
from typing import ClassVar

from fedneighbors.federation._messages import message
from fedneighbors.methods.knnper._settings import MemorySettings
from fedneighbors.methods.knnper.files._clients import read_settings, settings_parts
from fedneighbors.neural._blueprint import Blueprint
from fedneighbors.tabular._schema import Schema


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
