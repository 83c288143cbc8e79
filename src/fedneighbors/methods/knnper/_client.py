"""A client of a kNN-Per federation: its network inputs, training, memory and mixture."""

import math
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fedneighbors._limits import MAX_CELLS
from fedneighbors._typing import Floats
from fedneighbors.errors import DataError
from fedneighbors.federation._messages import Message
from fedneighbors.federation._roles import Refused
from fedneighbors.methods.knnper._settings import MemorySettings
from fedneighbors.methods.knnper._task import CLASSIFICATION, Task
from fedneighbors.methods.knnper.algorithm import weighted_change
from fedneighbors.methods.knnper.memory._rows import RowFeatures
from fedneighbors.methods.knnper.personal._client_state import (
    ClientState,
    ExpertOutputs,
    held_out_mask,
)
from fedneighbors.methods.knnper.personal._discriminants import (
    Discriminants,
    Scatter,
    upper_triangle,
)
from fedneighbors.methods.knnper.protocol import (
    FIXED_POINT,
    ClientMomentsRequest,
    ClientSchemaRequest,
    CountsRequest,
    PoolReply,
    PoolRequest,
    ReleaseRequest,
    ScatterReply,
    ScatterRequest,
    TargetsRequest,
    TrainRequest,
    UnitsRequest,
    UpdateReply,
)
from fedneighbors.neural._network import Device, Network, State, torch_device
from fedneighbors.neural._trainer import LocalTask, Trainer
from fedneighbors.tabular._ownership import TableParty, one_blas_thread
from fedneighbors.tabular._schema import Label, Receipt, column_moments

MAX_VALUE = 2.0**32
"""Larger absolute values are clipped to this: squares then do not overflow float32."""


def row_features(
    keys: Floats, x: Tensor, settings: MemorySettings, projection: Discriminants | None
) -> RowFeatures:
    """Return embeddings with the additional features for the heads of a pool.

    Only pools with exact memories have additional features. Tokens have none, because they are not
    coordinates.

    Parameters
    ----------
    keys : float64 array of shape (n_rows, n_dimensions)
        Embeddings.
    x : Tensor of shape (n_rows, ...)
        Rows as network inputs.
    settings : MemorySettings
        Settings of the memory.
    projection : Discriminants or None
        Projection of rows on discriminants, if any.
    """
    if not (settings.uses_rows and x.is_floating_point()):
        return RowFeatures(keys)
    rows = flat_rows(x)
    with one_blas_thread():  # products with several threads are rounded differently
        return RowFeatures(keys, rows, None if projection is None else projection.transform(rows))


def flat_rows(x: Tensor) -> Floats:
    """Return rows of any shape as a two-dimensional float64 array."""
    return np.asarray(x.reshape(len(x), math.prod(x.shape[1:])).cpu().double().numpy())


def as_tensor(x: npt.NDArray[Any], center: Floats, scale: Floats, network: Network) -> Tensor:
    """Return rows as network inputs.

    Parameters
    ----------
    x : array of shape (n_rows, ...)
        Rows of numbers, or of integer tokens.
    center, scale : float64 array of shape (n_features,)
        Center and scale of the columns; empty for no scaling.
    network : Network
        Network that reads the rows; it determines the dtype.

    Raises
    ------
    DataError
        If the network has an alphabet of tokens and rows have other values.
    """
    if len(center):
        x = (x - center) / scale
    if network.n_tokens is not None:
        x = check_tokens(x, network.n_tokens)
    if network.reads_tokens and x.dtype.kind in "iu":
        return torch.from_numpy(np.ascontiguousarray(x, np.int64))
    return torch.from_numpy(np.ascontiguousarray(x)).to(network.dtype)


def check_tokens(x: npt.NDArray[Any], n_tokens: int) -> npt.NDArray[np.int64]:
    """Return rows of tokens as int64.

    Parameters
    ----------
    x : array of shape (n_rows, n_tokens_of_a_row)
        Integers.
    n_tokens : int
        Size of the alphabet.

    Raises
    ------
    DataError
        If a token is not in the alphabet.
    """
    if not ((x >= 0) & (x < n_tokens) & (x == np.floor(x))).all():
        raise DataError(
            f"expected rows of tokens, integers from 0 to {n_tokens - 1}; encode them with "
            "the alphabet of the network"
        )
    return np.asarray(x, np.int64)


def shared_outputs(
    network: Network,
    weights: npt.NDArray[Any],
    x: Tensor,
    *,
    task: Task = CLASSIFICATION,
    device: Device = "cpu",
) -> tuple[Floats, Floats]:
    """Return embeddings and log-probabilities of the shared model, as float64 arrays.

    For regression, standardized predictions instead of log-probabilities.
    """
    embeddings, scores = network.embed(network.state(weights), x, device=device)
    return embeddings.double().numpy(), task.outputs(scores).double().numpy()


@lru_cache(maxsize=8)  # all clients of a simulation share a network
def check_network(
    network: Network, shape: tuple[int, ...], n_outputs: int, *, dtype_kind: str = "f"
) -> None:
    """Raise if a network does not support rows of a shape.

    It must return finite embeddings and ``n_outputs`` finite scores for two rows of zeros.

    Parameters
    ----------
    network : Network
        Network to train.
    shape : tuple of int
        Shape of a row.
    n_outputs : int
        Expected number of scores per row.
    dtype_kind : {"f", "i"}
        ``kind`` of the rows' NumPy dtype. Rows of integers may be tokens.

    Raises
    ------
    ValueError
        If the network does not accept the rows, does not use the embedding layer, or returns
        another number of scores.
    DataError
        If embeddings or scores are not finite.
    """
    rows = np.zeros((2, *shape), np.int64 if dtype_kind in "iu" else np.float64)
    try:
        keys, scores = _initial_outputs(network, rows)
    except (RuntimeError, ValueError, TypeError, IndexError) as error:
        raise ValueError(
            f"the model does not support rows of shape {shape} with the embedding from its layer "
            f"{network.embedding!r}: {str(error).splitlines()[0]}"
        ) from error
    if tuple(scores.shape) != (2, n_outputs):
        raise ValueError(
            f"expected a model with {n_outputs} scores for each row, got an output of shape "
            f"{tuple(scores.shape)} for 2 rows"
        )
    if not (torch.isfinite(keys).all() and torch.isfinite(scores).all()):
        raise DataError(
            f"the model's embeddings or scores are not finite for rows of zeros; check its "
            f"layers up to {network.embedding!r}"
        )


def probe_outputs(
    network: Network, shape: tuple[int, ...], *, dtype_kind: str = "f"
) -> npt.NDArray[np.float64]:
    """Compute embeddings and scores of two fixed rows under the initial weights.

    Parameters
    ----------
    network, shape, dtype_kind
        As in :func:`check_network`.
    """
    size = 2 * math.prod(shape)
    cells = np.zeros(size, np.int64) if dtype_kind in "iu" else np.linspace(-1, 1, size)
    outputs = _initial_outputs(network, cells.reshape(2, *shape))
    return np.concatenate([part.numpy().ravel() for part in outputs]).astype(np.float64)


def _initial_outputs(network: Network, rows: npt.NDArray[Any]) -> tuple[Tensor, Tensor]:
    """Return embeddings and scores of rows under the initial weights."""
    x = as_tensor(rows, np.empty(0), np.empty(0), network)  # without scaling
    return network.embed(network.state(network.initial), x)


class KNNPerParty(TableParty):
    """A client: its rows and its replies to the coordinator's requests.

    Parameters
    ----------
    name : str
        Name in the federation.
    x : array of shape (n_rows, ...)
        Rows: numbers, converted to the dtype of the network's weights, or integer tokens.
    y : array of shape (n_rows,) or (n_rows, n_outputs)
        Labels: strings, integers, floats or booleans; or targets of a regression.
    network : Network
        Network of all clients.
    settings : MemorySettings, optional
        Settings of the memory.
    task : Task
        Task: classification or regression.
    device : {"cpu", "cuda", "auto"}
        Device of the network.
    **table
        The other arguments of :class:`~fedneighbors.tabular._ownership.TableParty`.

    Raises
    ------
    ValueError
        If the numbers of labels and rows differ, or the device is unknown.
    MissingDeviceError
        If a GPU is requested and there is none.
    DataError
        If the network has an alphabet of tokens and rows have other values.

    Attributes
    ----------
    x : Tensor of shape (n_rows, ...)
        Rows as network inputs, set when classes or target units are known.
    client_state : ClientState or None
        Memory and mixture, set when the final model arrives.
    held_out : bool array of shape (n_rows,)
        True for held-out rows.
    """

    def __init__(
        self,
        name: str,
        x: npt.NDArray[Any],
        y: npt.NDArray[Any],
        network: Network,
        *,
        settings: MemorySettings | None = None,
        task: Task = CLASSIFICATION,
        device: Device = "cpu",
        **table: Any,
    ) -> None:
        super().__init__(name, np.asarray(x), y, **table)
        self.network = network
        self.task = task
        self.accepts = (
            ClientSchemaRequest,
            ClientMomentsRequest,
            TrainRequest,
            ReleaseRequest,
            PoolRequest,
            *task.requests,
        )
        self.client_state: ClientState | None = None
        self.settings = settings or MemorySettings()
        self.device: Device = device
        torch_device(device)
        self.held_out = held_out_mask(len(y), self.settings, name)
        self.x = torch.empty(0)
        if self.network.n_tokens is not None:
            self._x = check_tokens(self._x, self.network.n_tokens)
        self._labels: npt.NDArray[Any] = np.empty(0, np.int64)
        self._classes: tuple[Label, ...] | None = None
        self._expert_outputs: ExpertOutputs | None = None

    def answer(self, request: Message) -> Message:
        """Return the reply to one of the requests in ``accepts``."""
        match request:
            case ClientSchemaRequest():
                if request.layout != self.network.digest:
                    raise Refused("the network differs from the coordinator's")
                return self.task.describe(self._table, self._y, self._feature_names)
            case ClientMomentsRequest():
                return column_moments(self._table)
            case CountsRequest() | TargetsRequest() | UnitsRequest():
                return self._prepare(request)
        if self._classes is None:
            raise Refused("no classes or units of targets have arrived yet")
        match request:
            case ScatterRequest():
                return self._scatter(request)
            case TrainRequest():
                if self.n_rows * request.regime.epochs > MAX_CELLS:
                    raise Refused("so many epochs of the table would take too much memory")
                if request.regime.batch_size < self.network.min_rows:
                    raise Refused("the network needs larger batches")
                trainer = Trainer(
                    self.network,
                    self.x,
                    self.targets,
                    method="reuse",
                    objective=self.task.objective,
                    device=self.device,
                )
                [state] = trainer.train([self.local_task(request)], request.regime)
                return self.make_update(request, self.network.vector(state))
            case ReleaseRequest():
                self._release(request)
                return Receipt()
            case PoolRequest():
                return self._pool(request)
        raise Refused("unknown request")

    @property
    def _table(self) -> Any:
        """Return the original rows as a two-dimensional array."""
        return self._x.reshape(len(self._x), math.prod(self._x.shape[1:]))

    @property
    def n_rows(self) -> int:
        """Return the number of rows of the client."""
        return len(self._y)

    @property
    def targets(self) -> Tensor:
        """Return class indices of the labels, or standardized targets."""
        values = torch.from_numpy(self._labels)
        return values.to(self.network.dtype) if values.is_floating_point() else values

    def training_rows(self, *, without_held_out: bool) -> npt.NDArray[np.int64]:
        """Return positions of the rows to train on."""
        return np.flatnonzero(~self.held_out if without_held_out else np.ones(self.n_rows, bool))

    def local_task(self, request: TrainRequest) -> LocalTask:
        """Return the client's training task for a round."""
        return LocalTask(
            rows=self.training_rows(without_held_out=request.held_out),
            start=self._state(request.weights),
            seed_parts=(request.seed, self.name, request.number),
        )

    def _state(self, weights: npt.NDArray[Any]) -> State:
        """Return a state with the weights of a request."""
        try:
            return self.network.state(weights)
        except ValueError as error:
            raise Refused("the weights are those of another network") from error

    def make_update(self, request: TrainRequest, after: npt.NDArray[Any]) -> UpdateReply:
        """Return the reply for the weights ``after`` local training."""
        n = len(self.training_rows(without_held_out=request.held_out))
        try:
            change = weighted_change(request.weights, after, n_rows=n, bits=request.bits)
        except FloatingPointError:
            raise Refused(
                "training has diverged: lower the learning rate, and scale rows to about 1 (pixels "
                "divided by 255)"
            ) from None
        return UpdateReply(change)

    def _prepare(self, request: Any) -> Message:
        """Return the task's reply; set targets and network inputs once known."""
        if not isinstance(request, TargetsRequest):
            self._check_center(request.center)
        reply, values = self.task.answer_request(
            request, self._y, lambda flag: self.training_rows(without_held_out=flag)
        )
        if values is not None:
            classes = getattr(request, "classes", ())
            self._check_outputs(len(classes) or values.shape[1])
            self._classes, self._labels = classes, values
            with np.errstate(over="ignore"):  # a refusal would reveal that a row has a large value
                self.x = as_tensor(self._x, request.center, request.scale, self.network)
            if self.x.is_floating_point():
                self.x = self.x.clamp(-MAX_VALUE, MAX_VALUE)
        return reply

    def _check_center(self, center: Floats) -> None:
        """Refuse a scaling of another number of columns, which would repeat rows."""
        if len(center) not in (0, self._x.shape[-1]):
            raise Refused("the scaling has another number of columns")

    def _check_outputs(self, n_outputs: int) -> None:
        """Refuse classes or targets of another number than the network's scores."""
        try:
            shape = tuple(self._x.shape[1:])
            check_network(self.network, shape, n_outputs, dtype_kind=self._x.dtype.kind)
        except ValueError as error:
            raise Refused("the network does not fit the rows, classes or targets") from error

    def _check_release(self, request: ReleaseRequest) -> None:
        """Refuse shared state that does not fit the network or rows."""
        self._state(request.shared)
        self._check_pool(request.pool)
        try:
            self.task.check_overall(request.overall, self._classes or ())
            self.task.check_values(self._labels, request.overall)
        except ValueError as error:
            raise Refused("class shares or units do not fit the classes or targets") from error

    def _check_pool(self, weights: Floats | None) -> None:
        """Refuse weights of other experts."""
        if weights is None:
            return
        if weights.shape != (len(self.task.experts),) or not np.isfinite(weights).all():
            raise Refused("the pool's weights are not one finite number for each expert")

    def _release(self, request: ReleaseRequest) -> None:
        self._check_release(request)
        keys, scores = shared_outputs(
            self.network, request.shared, self.x, task=self.task, device=self.device
        )
        if not (np.isfinite(keys).all() and np.isfinite(scores).all()):
            raise Refused(
                "embeddings or scores are not finite: lower the learning rate or check the model"
            )
        features = row_features(keys, self.x, self.settings, request.seen)
        if not request.final:
            self._expert_outputs = ExpertOutputs.of(
                features, scores, self._labels, self.held_out, request.overall, self.settings
            )
            return
        outputs = self._expert_outputs
        self.client_state = ClientState.of(
            features,
            self._labels,
            weight=0.0 if outputs is None else outputs.weight,
            overall=request.overall,
            pool=request.pool,
            settings=self.settings if outputs is None else outputs.settings,
        )

    def _scatter(self, request: ScatterRequest) -> ScatterReply:
        rows = self.training_rows(without_held_out=request.held_out)
        x = flat_rows(self.x[torch.from_numpy(rows)])
        scatter = Scatter.of(request.features, x, self._labels[rows])
        upper = upper_triangle(request.features.n_features)
        within, between = (_to_fixed_point(m[upper]) for m in (scatter.within, scatter.between))
        return ScatterReply(within, between)

    def _pool(self, request: PoolRequest) -> PoolReply:
        if self._expert_outputs is None:
            raise Refused("no model has arrived yet")
        self._check_pool(request.weights)
        terms = self._expert_outputs.terms(request.weights)
        return PoolReply(
            n_rows=terms.n_rows,
            loss=int(_to_fixed_point(np.array(terms.loss))),
            gradient=_to_fixed_point(terms.gradient),
            hessian=_to_fixed_point(terms.hessian),
        )


def _to_fixed_point(values: Floats) -> npt.NDArray[np.int64]:
    scaled = np.rint(np.ldexp(values, FIXED_POINT))
    if not (np.abs(scaled) < 2.0**56).all():
        raise Refused("a sum over this client's rows is too large for fixed point, or not a number")
    return scaled.astype(np.int64)
