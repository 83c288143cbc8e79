"""A client on a node of its own, which is built anew for each message and keeps its part on disk.

Between messages a file beside the model holds what the client was told and still needs: the plan,
the classes, and the model on which it chooses its mixture. It is told these again, which gives what
it gave before. The file is gone once the client has its own part of the model.
"""

from collections.abc import Callable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from fedneighbors.federation._messages import Message, decode, encode, message
from fedneighbors.federation._roles import Refuse
from fedneighbors.methods.knnper._client import KNNPerParty
from fedneighbors.methods.knnper._messages import (
    CountsRequest,
    MomentsRequest,
    PoolRequest,
    ReleaseRequest,
    ScatterRequest,
    SchemaRequest,
    TrainRequest,
)
from fedneighbors.methods.knnper._model import KNNPerModel
from fedneighbors.methods.knnper._records import ClientRecord
from fedneighbors.methods.knnper._settings import MemorySettings
from fedneighbors.methods.knnper.protocol import Shared
from fedneighbors.neural._blueprint import OWN, Blueprint, Model
from fedneighbors.neural._network import Network
from fedneighbors.records._storage import replace_file
from fedneighbors.tabular._model_file import open_model, read_model_file, sealed_model
from fedneighbors.tabular._ownership import one_thread
from fedneighbors.tabular._schema import Agreed, Schema, describe


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


Scalar = str | int | float | bool | None


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
        if name != "codec"
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


MAGIC = b"FNKNODE1"


@message
class Told:
    """Frames of the requests that a client is told again."""

    frames: tuple[bytes, ...]


class NodeParty:
    """A client whose rows, memory and lambda stay on its node.

    Parameters
    ----------
    name : str
        Its name in the federation.
    x : array of shape (n_rows, n_features)
        Rows of its table.
    y : array of shape (n_rows,)
        Labels.
    model_path : path
        Where its part of the model goes, from which it predicts later. What it needs from one
        message to the next lies beside it under ``.pending``.
    feature_names : tuple of str, optional
        Column names.
    label_name : str
        Of the column of labels.
    own : callable, optional
        Returns the function that makes this node's own network, for runs that ask for one.
    """

    accepts: tuple[type[Any], ...] = (
        OpeningRequest,
        PlanRequest,
        MomentsRequest,
        CountsRequest,
        TrainRequest,
        ScatterRequest,
        ReleaseRequest,
        PoolRequest,
    )

    def __init__(
        self,
        name: str,
        x: npt.NDArray[Any],
        y: npt.NDArray[Any],
        *,
        model_path: str | Path,
        feature_names: tuple[str, ...] | None = None,
        label_name: str = "target",
        own: Callable[[], Model] | None = None,
    ) -> None:
        self.name = name
        self._x, self._y = np.asarray(x), np.asarray(y)
        self._path = Path(model_path)
        self._pending = self._path.with_name(self._path.name + ".pending")
        self._feature_names, self._label_name = feature_names, label_name
        self._own = own

    def answer(self, request: Message) -> Message:
        """Return the reply to one of the requests in ``accepts``."""
        if isinstance(request, OpeningRequest):
            self._pending.unlink(missing_ok=True)
            return describe(self._x, self._y, self._feature_names, self._label_name)
        told = (request,) if isinstance(request, PlanRequest) else self._told()
        plan = told[0]
        with one_thread():
            member = self._member(plan)
            if isinstance(request, PlanRequest):
                self._remember(told)
                return member.answer(SchemaRequest(request.layout))
            for earlier in _needed(told[1:], request):
                member.answer(earlier)
            reply = member.answer(request)
        if isinstance(request, ReleaseRequest) and request.final:
            self._keep(plan, member, told, request)
        elif isinstance(request, CountsRequest | ReleaseRequest):
            others = [earlier for earlier in told if type(earlier) is not type(request)]
            self._remember((*others, request))
        return reply

    def _member(self, plan: PlanRequest) -> KNNPerParty:
        """Return the client as it is at the beginning of a training."""
        network, shape = self._network(plan), plan.blueprint.shape
        if int(np.prod(shape)) != int(np.prod(self._x.shape[1:])):
            raise Refuse("its rows are not of the shape that the network takes")
        return KNNPerParty(
            self.name,
            self._x.reshape(len(self._x), *shape),
            self._y,
            network,
            settings=plan.settings,
            feature_names=self._feature_names,
        )

    def _network(self, plan: PlanRequest) -> Network:
        try:
            blueprint, _ = plan.blueprint, plan.settings  # words, of which either may be foreign
        except ValueError:
            raise Refuse("the plan names no network or memories that it knows") from None
        if blueprint.model == OWN and self._own is None:
            raise Refuse("a key is not set in the configuration of the node", "model")
        return blueprint.network(self._own() if blueprint.model == OWN and self._own else None)

    def _told(self) -> tuple[Any, ...]:
        if not self._pending.exists():
            raise Refuse("no plan has come yet")
        kept = open_model(MAGIC, read_model_file(self._pending), Told, source="what was told")
        kinds = (PlanRequest, CountsRequest, ReleaseRequest)
        return tuple(decode(frame, kinds) for frame in kept.frames)

    def _remember(self, told: tuple[Any, ...]) -> None:
        replace_file(self._pending, sealed_model(MAGIC, Told(tuple(map(encode, told)))))

    def _keep(
        self, plan: PlanRequest, member: KNNPerParty, told: tuple[Any, ...], final: ReleaseRequest
    ) -> None:
        """Write the client's own part, and forget what it was told."""
        counts = next(each for each in told if isinstance(each, CountsRequest))
        assert member.personal is not None  # the final model has just come
        KNNPerModel(
            blueprint=plan.blueprint,
            layout=plan.layout,
            shared=Shared(
                weights=final.shared,
                classes=counts.classes,
                overall=final.overall,
                pool=final.pool if len(final.pool) else None,
                center=counts.center,
                scale=counts.scale,
                agreed=Agreed(self._x.shape[1], self._feature_names, counts.classes),
                seen=final.seen,
            ),
            settings=plan.settings,
            clients={self.name: ClientRecord.of(member.personal)},
        ).save(self._path)
        self._pending.unlink(missing_ok=True)


def _needed(told: tuple[Any, ...], request: Message) -> list[Any]:
    """Return what a client must have been told to answer a request, in the order of a training."""
    if isinstance(request, MomentsRequest | CountsRequest):
        return []
    kinds = (
        (CountsRequest,)
        if isinstance(request, TrainRequest | ScatterRequest)
        else (CountsRequest, ReleaseRequest)
    )
    needed = [each for kind in kinds for each in told if isinstance(each, kind)]
    if not needed:
        raise Refuse("no classes have come yet")
    return needed
