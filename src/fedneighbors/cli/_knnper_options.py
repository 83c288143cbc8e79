"""Command-line options of kNN-Per, and the parameters that they describe."""

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from fedneighbors.cli._files import Files

_TRAINING = "Network and rounds"
_MEMORY = "Memories"


class NetworkName(StrEnum):
    """Built-in networks for rows of numbers."""

    PERCEPTRON = "perceptron"
    CNN = "cnn"
    MOBILENET = "mobilenet"


class RepresentationName(StrEnum):
    """Keys of the memories."""

    AUTO = "auto"
    NETWORK = "network"
    DISCRIMINANTS = "discriminants"
    ROWS = "rows"


class ScheduleName(StrEnum):
    """Learning rates over the rounds."""

    STEPS = "steps"
    CONSTANT = "constant"
    COSINE = "cosine"


class MemoryName(StrEnum):
    """Storage of keys."""

    EXACT = "exact"
    EIGHT_BIT = "8-bit"
    PRODUCT = "product"
    CENTERS = "centers"


class StrategyName(StrEnum):
    """Handling of new rows by a memory."""

    CONCATENATE = "concatenate"
    FIXED = "fixed"
    FIFO = "fifo"
    RESERVOIR = "reservoir"
    DRIFT = "drift"


class Combine(StrEnum):
    """Ways to combine memory and network."""

    AUTO = "auto"
    PAPER = "paper"
    POOL = "pool"


class Device(StrEnum):
    """Devices of network training."""

    CPU = "cpu"
    CUDA = "cuda"
    AUTO = "auto"


def _option(panel: str, *names: str, **settings: Any) -> Any:
    return typer.Option(*names, rich_help_panel=panel, **settings)


ModelOption = Annotated[
    NetworkName | None,
    _option(_TRAINING, help="Network; cnn and mobilenet are for images in .npz files."),
]
HiddenOption = Annotated[
    str | None, _option(_TRAINING, help="Widths of the perceptron's layers, such as 256,128.")
]
RepresentationOption = Annotated[
    RepresentationName,
    _option(
        _TRAINING,
        help="Keys of the memories: outputs of a network, or, without training, discriminants "
        "or the rows; auto is discriminants, or network with an option of this panel.",
    ),
]
RoundsOption = Annotated[
    str | None,
    _option(
        _TRAINING,
        help="Rounds of federated averaging, or plateau: until the held-out loss stops falling; "
        "50 by default.",
    ),
]
PatienceOption = Annotated[
    int | None, _option(_TRAINING, min=1, help="Rounds without a lower loss, for plateau.")
]
MaxRoundsOption = Annotated[
    int | None, _option(_TRAINING, min=1, help="Maximum number of rounds, for plateau.")
]
ParticipationOption = Annotated[
    float | None,
    _option(_TRAINING, min=0.001, max=1.0, help="Fraction of the clients per round; default 1."),
]
ScheduleOption = Annotated[
    ScheduleName | None,
    _option(_TRAINING, help="Learning rates over the rounds; steps by default."),
]
LearningRateOption = Annotated[
    float | None, _option(_TRAINING, help="First learning rate; 0.02 by default.")
]
CheckpointOption = Annotated[
    Path | None,
    _option(_TRAINING, help="Checkpoint file; an interrupted training resumes from it."),
]
DeviceOption = Annotated[
    Device, _option(_TRAINING, help="Device of the networks; auto uses a GPU if available.")
]
NeighborsOption = Annotated[
    int, _option(_MEMORY, "-k", "--neighbors", min=1, help="Number of neighbors (k).")
]
CombineOption = Annotated[
    Combine,
    _option(
        _MEMORY,
        help="Mix network and memory with one weight per client (paper), or multiply six "
        "predictions with common weights (pool); auto is pool for discriminants, else paper.",
    ),
]
MemoryOption = Annotated[
    MemoryName, _option(_MEMORY, help="Storage of keys: exact, or compressed.")
]
CapacityOption = Annotated[
    int | None, _option(_MEMORY, min=1, help="Maximum number of rows per client memory.")
]
StrategyOption = Annotated[
    StrategyName, _option(_MEMORY, help="Handling of rows that are added to a memory.")
]


@dataclass(frozen=True)
class KNNPerOptions:
    """Options of ``run knnper``, checked for conflicts.

    ``training`` has those that only the training of a network uses, by name; None for the default.

    Raises
    ------
    typer.BadParameter
        If options exclude each other, or a value is invalid.
    """

    training: dict[str, Any]
    model: NetworkName | None
    hidden: str | None
    representation: RepresentationName
    memory: MemoryName
    capacity: int | None
    strategy: StrategyName
    privacy: Any

    def __post_init__(self) -> None:
        training = self._network_options()
        if self.representation not in (RepresentationName.AUTO, RepresentationName.NETWORK):
            for name in (name for name, value in training.items() if value is not None):
                raise typer.BadParameter(
                    f"--{name.replace('_', '-')} is for a network, and --representation "
                    f"{self.representation.value} trains none; omit one of them"
                )
        if self.hidden is not None and self._is_for_images:
            raise typer.BadParameter("--hidden is for a perceptron; omit it or --model")
        plateau = [name for name in ("patience", "max_rounds") if training[name] is not None]
        if plateau and training["rounds"] != "plateau":
            raise typer.BadParameter(
                f"--{plateau[0].replace('_', '-')} needs --rounds plateau; add it or omit the limit"
            )
        self._check_memory()

    def _network_options(self) -> dict[str, Any]:
        return self.training | {
            "model": self.model,
            "hidden": self.hidden,
            "epsilon": self.privacy,
        }

    def _check_memory(self) -> None:
        is_default = self.strategy is StrategyName.CONCATENATE
        if self.memory is MemoryName.CENTERS and (self.capacity is not None or not is_default):
            raise typer.BadParameter(
                "--memory centers stores no rows that could be dropped; omit --capacity and "
                "--strategy"
            )
        if self.strategy in (StrategyName.FIFO, StrategyName.RESERVOIR) and self.capacity is None:
            raise typer.BadParameter(
                f"--strategy {self.strategy.value} drops rows beyond --capacity; add it"
            )

    @property
    def _is_for_images(self) -> bool:
        return self.model in (NetworkName.CNN, NetworkName.MOBILENET)

    def parameters(self) -> dict[str, Any]:
        """Return the arguments of :class:`KNNPerClassifier`; defaults are omitted."""
        names = {"rounds": "n_rounds", "schedule": "learning_rate_schedule"}
        values = {names.get(name, name): value for name, value in self.training.items()}
        schedule = self.training["schedule"]
        values |= {
            "learning_rate_schedule": schedule and schedule.value,
            "model": self.model.value if self._is_for_images and self.model else None,
            "n_rounds": _parse_rounds(self.training["rounds"]),
            "hidden": None if self.hidden is None else _parse_widths(self.hidden),
            "capacity": self.capacity,
            "privacy": self.privacy,
        }
        values = {name: value for name, value in values.items() if value is not None}
        has_network = any(value is not None for value in self._network_options().values())
        is_auto = self.representation is RepresentationName.AUTO
        return values | {
            "representation": "network" if is_auto and has_network else self.representation.value,
            "memory": self.memory.value,
            "strategy": self.strategy.value,
        }

    def row_shape(self, files: Files) -> tuple[int, ...]:
        """Return the shape of images for their networks; otherwise, empty.

        Raises
        ------
        typer.BadParameter
            If a file has no images, or images of different shapes.
        """
        from fedneighbors.datasets._arrays import is_arrays, read_row_shape

        if not self._is_for_images:
            return ()
        paths = files.sources.values()
        shapes = {read_row_shape(Path(path)) if is_arrays(path) else () for path in paths}
        shape = shapes.pop()
        if shapes or len(shape) < 2:
            raise typer.BadParameter(
                f"--model {self.model} needs images of one shape, channels first: .npz files with "
                f"an array x of shape (rows, channels, height, width); got {files.title}"
            )
        return shape


def _parse_rounds(text: str | None) -> int | str | None:
    if text is None or text == "plateau":
        return text
    if not text.isdecimal() or int(text) < 1:
        raise typer.BadParameter(f"expected --rounds as 1 or more, or plateau, got {text!r}")
    return int(text)


def _parse_widths(text: str) -> tuple[int, ...]:
    widths = text.split(",")
    if not all(width.strip().isdecimal() and int(width) > 0 for width in widths):
        raise typer.BadParameter(f"expected --hidden as numbers such as 256,128, got {text!r}")
    return tuple(map(int, widths))
