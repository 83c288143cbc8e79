"""The kinds of memory by name, and which of them can do what."""

from collections.abc import Sequence
from typing import Any, Literal, Protocol, get_args

import numpy.typing as npt

from fedneighbors._typing import Floats
from fedneighbors.methods.knnper.algorithm import Kernel
from fedneighbors.methods.knnper.memory._datastore import Datastore, Strategy
from fedneighbors.methods.knnper.memory._search import Search
from fedneighbors.methods.knnper.memory.compression._centers import ClassCenters
from fedneighbors.methods.knnper.memory.compression._coded import CodedDatastore
from fedneighbors.methods.knnper.memory.compression._eightbit import EightBitCodec
from fedneighbors.methods.knnper.memory.compression._product import ProductCodec
from fedneighbors.methods.knnper.memory.compression._protonn import PrototypeMemory

Kind = Literal["exact", "8-bit", "product", "centers", "protonn"]

KINDS: tuple[Kind, ...] = get_args(Kind)

SUMMARIES: tuple[Kind, ...] = ("centers", "protonn")
"""Those that keep no rows, so that none can be counted, evicted or deleted; they are of classes."""

ROW_KINDS: tuple[Kind, ...] = ("exact", "8-bit", "product")
"""Those that keep a key for each row, whether it has a class or numbers that are predicted."""


class Memory(Protocol):
    """What a client's memory is asked, whatever it keeps."""

    def __len__(self) -> int:
        """Return how many rows it stands for."""

    @property
    def keys(self) -> Floats:
        """A key for each row, as well as it is known."""

    @property
    def labels(self) -> npt.NDArray[Any]:
        """Class of each key."""

    @property
    def recent_labels(self) -> npt.NDArray[Any]:
        """Class of each key that came since the shares of the classes changed."""

    @property
    def nbytes(self) -> int:
        """Bytes that it needs to answer."""

    def add(
        self, keys: npt.ArrayLike, labels: npt.ArrayLike, ids: Sequence[str] | None = None
    ) -> "Memory":
        """Let rows in, or raise RebuildNeeded."""

    def forget(self, ids: Sequence[str]) -> "Memory":
        """Delete rows so that nothing of them stays, or raise RebuildNeeded."""

    def votes(
        self,
        queries: Floats,
        n_classes: int,
        *,
        n_neighbors: int,
        kernel: Kernel = "paper",
        sigma: float = 1.0,
    ) -> Floats | None:
        """Return shares of the classes for each query; None if it is empty."""


def new_memory(
    kind: Kind,
    n_dimensions: int,
    n_classes: int,
    *,
    capacity: int | None = None,
    strategy: Strategy = "concatenate",
    search: Search = "auto",
    random_state: int = 0,
    n_beside: int = 0,
    codec: ProductCodec | None = None,
) -> Memory:
    """Return an empty memory.

    Parameters
    ----------
    kind : {"exact", "8-bit", "product", "centers", "protonn"}
        Keys as they are; a byte for a cell; 16 numbers of four bits in a codebook of the client's
        own; a center for nine rows of a class, eight bits a cell; or learned prototypes.
    n_dimensions : int
        Width of a key.
    n_classes : int
        Classes.
    capacity, strategy
        As :class:`~.datastore.Datastore` takes them; not for centers and prototypes.
    search : {"auto", "own", "faiss"}
        For exact keys.
    random_state : int
        Of reservoirs and of what is learned.
    n_beside : int
        Columns at the end of exact keys that no distance looks at.
    codec : ProductCodec, optional
        With a book that was learned elsewhere, for product codes. None: each memory's own.

    Raises
    ------
    ValueError
        If the kind is another, or keeps no rows and is told which to keep.
    """
    if kind not in KINDS:
        raise ValueError(f"expected memory among {KINDS}, got {kind!r}")
    refuse_kept_rows(kind, capacity, strategy)
    if kind == "centers":
        return ClassCenters(n_dimensions, n_classes, random_state=random_state)
    if kind == "protonn":
        return PrototypeMemory(n_dimensions, n_classes, random_state=random_state)
    return new_datastore(
        kind,
        n_dimensions,
        n_classes,
        capacity=capacity,
        strategy=strategy,
        search=search,
        random_state=random_state,
        n_beside=n_beside,
        codec=codec,
    )


def new_datastore(
    kind: Kind,
    n_dimensions: int,
    n_classes: int | None = None,
    *,
    capacity: int | None = None,
    strategy: Strategy = "concatenate",
    search: Search = "auto",
    random_state: int = 0,
    n_beside: int = 0,
    codec: ProductCodec | None = None,
) -> Datastore:
    """Return an empty memory that keeps a key for each row.

    Parameters
    ----------
    kind : {"exact", "8-bit", "product"}
        As :func:`new_memory` takes it.
    n_dimensions : int
        Width of a key.
    n_classes : int, optional
        Classes. None where rows have numbers in place of classes; codes leave them as they are.
    capacity, strategy, search, random_state, n_beside, codec
        As :func:`new_memory` takes them.

    Raises
    ------
    ValueError
        If the kind is another: centers and prototypes are made of classes; or if the codec's book
        is of keys of another width.
    """
    if kind not in ROW_KINDS:
        raise ValueError(
            f"expected memory among {ROW_KINDS}, which keep rows, got {kind!r}; centers and "
            "prototypes are of classes"
        )
    if kind == "exact":
        return Datastore(
            n_dimensions, capacity, strategy, random_state, n_classes, search, n_beside
        )
    chosen: EightBitCodec | ProductCodec = EightBitCodec(n_dimensions)
    if kind == "product":
        chosen = ProductCodec(16, 4, random_state) if codec is None else codec
        if chosen.book is not None and chosen.book.n_dimensions != n_dimensions:
            raise ValueError(
                f"expected a book of keys of width {n_dimensions}, got {chosen.book.n_dimensions}"
            )
    return CodedDatastore(n_dimensions, capacity, strategy, random_state, n_classes, codec=chosen)


def refuse_kept_rows(kind: Kind, capacity: int | None, strategy: Strategy) -> None:
    """Refuse to tell a memory that keeps no rows which ones to keep.

    Parameters
    ----------
    kind, capacity, strategy
        As :func:`new_memory` takes them.

    Raises
    ------
    ValueError
        If the kind is centers or prototypes, and capacity or strategy is not the default.
    """
    if kind in SUMMARIES and (capacity is not None or strategy != "concatenate"):
        raise ValueError(
            f"memory={kind!r} keeps no rows that could be left out or go; leave capacity at None "
            f"and strategy at 'concatenate', got {capacity!r} and {strategy!r}"
        )
