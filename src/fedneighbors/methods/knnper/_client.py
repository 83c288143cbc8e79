"""A client of a kNN-Per federation: its network inputs, training, memory and mixture.

Torch is imported for networks only; frozen embeddings do not need it.
"""

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from fedneighbors._limits import MAX_CELLS
from fedneighbors._typing import Array, Floats, Integers
from fedneighbors.federation._messages import Message
from fedneighbors.federation._roles import Refused
from fedneighbors.methods.knnper._frozen import ClassMomentsRequest, FrozenModel
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
    ScatterReply,
    ScatterRequest,
    upper_triangle,
)
from fedneighbors.methods.knnper.personal._pool import PoolReply, PoolRequest, check_weights
from fedneighbors.methods.knnper.protocol import (
    FIXED_POINT,
    ClientMomentsRequest,
    ClientSchemaRequest,
    CountsRequest,
    LossReply,
    LossRequest,
    ReleaseRequest,
    TargetsRequest,
    TrainRequest,
    UnitsRequest,
    UpdateReply,
)
from fedneighbors.tabular._ownership import TableParty, one_blas_thread
from fedneighbors.tabular._schema import Label, Receipt, column_moments

MAX_VALUE = 2.0**32
"""Larger absolute values are clipped to this: squares then do not overflow float32."""

if TYPE_CHECKING:
    from torch import Tensor

    from fedneighbors.neural._network import Device, Network, State
    from fedneighbors.neural._trainer import LocalTask


def row_features(
    keys: Floats, x: "Tensor | Floats", settings: MemorySettings, projection: Discriminants | None
) -> RowFeatures:
    """Return embeddings with the additional features for the heads of a pool.

    Only pools with exact memories have additional features. Tokens have none, because they are not
    coordinates.

    Parameters
    ----------
    keys : float64 array of shape (n_rows, n_dimensions)
        Embeddings.
    x : Tensor or float64 array of shape (n_rows, ...)
        Rows as inputs of the network or of the frozen embedding.
    settings : MemorySettings
        Settings of the memory.
    projection : Discriminants or None
        Projection of rows on discriminants, if any.
    """
    if not (settings.uses_rows and "float" in str(x.dtype)):
        return RowFeatures(keys)
    rows = flat_rows(x)
    with one_blas_thread():  # products with several threads are rounded differently
        return RowFeatures(keys, rows, None if projection is None else projection.transform(rows))


def flat_rows(x: "Tensor | Floats") -> Floats:
    """Return rows of any shape as a two-dimensional float64 array."""
    return np.asarray(x.reshape(len(x), math.prod(x.shape[1:])), np.float64)


def model_inputs(
    x: Array, center: Floats, scale: Floats, model: "Network | FrozenModel"
) -> "Tensor | Floats":
    """Return rows as inputs of a shared model.

    Parameters are as in :func:`~fedneighbors.neural._blueprint.as_tensor`.
    """
    if isinstance(model, FrozenModel):
        return model.inputs(x, center, scale)
    from fedneighbors.neural._blueprint import as_tensor

    return as_tensor(x, center, scale, model)


def shared_outputs(
    model: "Network | FrozenModel",
    weights: Array,
    x: Any,
    *,
    task: Task = CLASSIFICATION,
    device: "Device" = "cpu",
    seen: Discriminants | None = None,
) -> tuple[Floats, Floats]:
    """Return embeddings and log-probabilities of the shared model, as float64 arrays.

    For regression, standardized predictions instead of log-probabilities. ``seen`` are the
    discriminants of all clients, if they are the embedding.
    """
    if isinstance(model, FrozenModel):
        with one_blas_thread():
            keys, scores = model.outputs(weights, x, seen)
        return keys, task.outputs(scores)
    embeddings, outputs = model.embed(model.state(weights), x, device=device)
    return embeddings.double().numpy(), task.outputs(outputs).double().numpy()


_TRAINING = (TrainRequest, LossRequest)


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
    network : Network or FrozenModel
        Shared model of all clients.
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
    x : Tensor or float64 array of shape (n_rows, ...)
        Rows as inputs of the shared model, set when classes or target units are known.
    client_state : ClientState or None
        Memory and mixture, set when the final model arrives.
    held_out : bool array of shape (n_rows,)
        True for held-out rows.
    """

    def __init__(
        self,
        name: str,
        x: Array,
        y: Array,
        network: "Network | FrozenModel",
        *,
        settings: MemorySettings | None = None,
        task: Task = CLASSIFICATION,
        device: "Device" = "cpu",
        **table: Any,
    ) -> None:
        super().__init__(name, np.asarray(x), y, **table)
        self.network = network
        self.task = task
        self.accepts = (
            ClientSchemaRequest,
            ClientMomentsRequest,
            *((ClassMomentsRequest,) if isinstance(network, FrozenModel) else _TRAINING),
            ReleaseRequest,
            PoolRequest,
            *task.requests,
        )
        self.client_state: ClientState | None = None
        self.settings = settings or MemorySettings()
        self.device: Device = device
        self.held_out = held_out_mask(len(y), self.settings, name)
        self.x: Any = np.empty(0)
        if not isinstance(network, FrozenModel):
            from fedneighbors.neural._network import torch_device

            torch_device(device)
        if self.network.n_tokens is not None:
            from fedneighbors.neural._blueprint import check_tokens

            self._x = check_tokens(self._x, self.network.n_tokens)
        self._labels: Array = np.empty(0, np.int64)
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
                return self._column_moments()
            case CountsRequest() | TargetsRequest() | UnitsRequest():
                return self._prepare(request)
        if self._classes is None:
            raise Refused("no classes or units of targets have arrived yet")
        match request:
            case ScatterRequest():
                return self._scatter(request)
            case ClassMomentsRequest():
                return self._class_moments(request)
            case TrainRequest():
                if self.n_rows * request.regime.epochs > MAX_CELLS:
                    raise Refused("so many epochs of the table would take too much memory")
                return self._train_alone(request)
            case LossRequest():
                return self._held_out_loss(request)
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
    def targets(self) -> "Tensor":
        """Return class indices of the labels, or standardized targets."""
        import torch

        values = torch.from_numpy(self._labels)
        return values.to(self.trained_network.dtype) if values.is_floating_point() else values

    def training_rows(self, *, without_held_out: bool) -> Integers:
        """Return positions of the rows to train on."""
        return np.flatnonzero(~self.held_out if without_held_out else np.ones(self.n_rows, bool))

    @property
    def trained_network(self) -> "Network":
        """Return the network; a frozen model is not trained."""
        if isinstance(self.network, FrozenModel):
            raise Refused("a frozen embedding is not trained")
        return self.network

    def _train_alone(self, request: TrainRequest) -> UpdateReply:
        from fedneighbors.neural._trainer import Trainer

        network = self.trained_network
        if request.regime.batch_size < network.min_rows:
            raise Refused("the network needs larger batches")
        trainer = Trainer(
            network,
            self.x,
            self.targets,
            method="reuse",
            objective=self.task.objective,
            device=self.device,
        )
        [state] = trainer.train([self.local_task(request)], request.regime)
        return self.make_update(request, network.vector(state))

    def local_task(self, request: TrainRequest) -> "LocalTask":
        """Return the client's training task for a round."""
        from fedneighbors.neural._trainer import LocalTask

        return LocalTask(
            rows=self.training_rows(without_held_out=request.held_out),
            start=self._state(request.weights),
            seed_parts=(request.seed, self.name, request.number),
        )

    def _held_out_loss(self, request: LossRequest) -> LossReply:
        self._state(request.weights)
        rows = np.flatnonzero(self.held_out)
        _, scores = shared_outputs(
            self.network, request.weights, self.x[rows], task=self.task, device=self.device
        )
        loss = self.task.loss(scores, self._labels[rows]) if len(rows) else 0.0
        return LossReply(len(rows), int(_to_fixed_point(np.array(loss))))

    def _state(self, weights: Array) -> "State":
        """Return a state with the weights of a request."""
        try:
            return self.trained_network.state(weights)
        except ValueError as error:
            raise Refused("the weights are those of another network") from error

    def make_update(self, request: TrainRequest, after: Array) -> UpdateReply:
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
                self.x = model_inputs(self._x, request.center, request.scale, self.network)
            if not isinstance(self.network, FrozenModel) and self.x.is_floating_point():
                self.x = self.x.clamp(-MAX_VALUE, MAX_VALUE)
        return reply

    def _column_moments(self) -> Message:
        """Return exact sums of the table's columns, or of the user's embedding."""
        model = self.network
        return column_moments(
            model.table(self._x) if isinstance(model, FrozenModel) else self._table
        )

    def _class_moments(self, request: ClassMomentsRequest) -> Message:
        """Return the moments of embedded rows by class."""
        rows = self.training_rows(without_held_out=request.held_out)
        assert isinstance(self.network, FrozenModel)  # ``accepts`` has this request for these only
        with one_blas_thread():
            return self.network.moments(request, self.x[rows], self._labels[rows])

    def _check_center(self, center: Floats) -> None:
        """Refuse a scaling of another number of columns, which would repeat rows."""
        if len(center) not in (0, self._x.shape[-1]):
            raise Refused("the scaling has another number of columns")

    def _check_outputs(self, n_outputs: int) -> None:
        """Refuse classes or targets of another number than the network's scores."""
        if isinstance(self.network, FrozenModel):
            if n_outputs != self.network.n_outputs:
                raise Refused("the embedding's head does not fit the classes or targets")
            return
        from fedneighbors.neural._blueprint import check_network

        try:
            shape = tuple(self._x.shape[1:])
            check_network(self.network, shape, n_outputs, dtype_kind=self._x.dtype.kind)
        except ValueError as error:
            raise Refused("the network does not fit the rows, classes or targets") from error

    def _check_release(self, request: ReleaseRequest) -> None:
        """Refuse shared state that does not fit the network or rows."""
        if not isinstance(self.network, FrozenModel):
            self._state(request.shared)
        if request.pool is not None and request.pool.experts != self.task.experts:
            raise Refused("the pool has other experts")
        try:
            self.task.check_overall(request.overall, self._classes or ())
            self.task.check_values(self._labels, request.overall)
        except ValueError as error:
            raise Refused("class shares or units do not fit the classes or targets") from error

    def _release(self, request: ReleaseRequest) -> None:
        self._check_release(request)
        keys, scores = shared_outputs(
            self.network,
            request.shared,
            self.x,
            task=self.task,
            device=self.device,
            seen=request.seen,
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
            pool=None if request.pool is None else request.pool.weights,
            settings=self.settings if outputs is None else outputs.settings,
        )

    def _scatter(self, request: ScatterRequest) -> ScatterReply:
        rows = self.training_rows(without_held_out=request.held_out)
        x = flat_rows(self.x[rows])
        scatter = Scatter.of(request.features, x, self._labels[rows])
        upper = upper_triangle(request.features.n_features)
        within, between = (_to_fixed_point(m[upper]) for m in (scatter.within, scatter.between))
        return ScatterReply(within, between)

    def _pool(self, request: PoolRequest) -> PoolReply:
        outputs = self._expert_outputs
        if outputs is None:
            raise Refused("no model has arrived yet")
        n_experts = len(self.task.experts)
        try:
            check_weights(request.weights, n_experts)
        except ValueError as error:
            raise Refused(
                "the pool's weights are not one number of 0 or more per expert"
            ) from error
        if not 0 < len(request.weights) <= n_experts + 1:
            raise Refused("expected the weights of one pool, or of pools without each expert")
        terms = [outputs.terms(weights) for weights in request.weights]
        return PoolReply(
            n_rows=len(outputs.values),
            losses=_to_fixed_point(np.array([each.loss for each in terms])),
            gradients=_to_fixed_point(np.array([each.gradient for each in terms])),
            hessians=_to_fixed_point(np.array([each.hessian for each in terms])),
        )


def _to_fixed_point(values: Floats) -> Integers:
    scaled = np.rint(np.ldexp(values, FIXED_POINT))
    if not (np.abs(scaled) < 2.0**56).all():
        raise Refused("a sum over this client's rows is too large for fixed point, or not a number")
    return scaled.astype(np.int64)
