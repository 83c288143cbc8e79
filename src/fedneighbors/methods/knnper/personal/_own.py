"""A client's own part of a model: a memory, how much it weighs, and what follows from it."""

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy.typing as npt

from fedneighbors._typing import Floats
from fedneighbors.methods.knnper._settings import MemorySettings
from fedneighbors.methods.knnper.memory._datastore import Datastore
from fedneighbors.methods.knnper.memory.compression._kinds import Memory, new_datastore
from fedneighbors.methods.knnper.memory.compression._product import ProductCodec
from fedneighbors.methods.knnper.personal._choosing import in_metric
from fedneighbors.tabular._ownership import one_blas_thread


@dataclass(eq=False)
class OwnPart(ABC):
    """What one client has for itself.

    Parameters
    ----------
    memory : Memory
        Its rows, as the shared model sees them.
    weight : float
        Of the memory by Eq 7 (lambda).
    overall : float64 array
        What is known of all clients: shares of the classes, of shape (n_classes,), or means and
        deviations of the targets, of shape (2, n_outputs).
    pool : float64 array of shape (n_experts,) or None
        Weights of the experts; None for the paper's mixture.
    settings : MemorySettings
        How the memory is asked, with the k and the metric that the client chose.
    """

    memory: Memory
    weight: float
    overall: Floats
    pool: Floats | None
    settings: MemorySettings

    def __post_init__(self) -> None:
        self._made_anew()

    def add(self, keys: Floats, labels: npt.NDArray[Any], ids: Any = None) -> None:
        """Let rows into the memory."""
        near = in_metric(keys, self.settings.metrics[0], self.settings.n_beside)
        self.memory.add(near, labels, ids)
        self._made_anew()

    def forget(self, ids: Any) -> None:
        """Delete rows from the memory and from all that was made of it."""
        self.memory.forget(ids)
        self._made_anew()

    def coded(self, codec: ProductCodec) -> Self:
        """Return the same part with product codes of its keys in place of them.

        Parameters
        ----------
        codec : ProductCodec
            With a book that was learned on other rows.

        Raises
        ------
        ValueError
            If the memory is not an exact one, or has other columns than the book.
        DataError
            If a key is beyond what 32 bits hold.
        """
        before = self.memory
        if type(before) is not Datastore:
            raise ValueError(
                f"expected an exact memory, whose keys are kept, got a {type(before).__name__}"
            )
        settings = replace(self.settings, memory="product", codec=codec)
        memory = new_datastore(
            "product",
            before.n_dimensions,
            before.n_classes,
            capacity=before.capacity,
            strategy=before.strategy,
            random_state=before.random_state,
            codec=codec,
        )
        memory.restore(before.keys, before.labels, before.ids, before.state())
        return replace(self, memory=memory, settings=settings)

    def _made_anew(self) -> None:
        with one_blas_thread():  # the same rows give the same bits, however many threads there are
            self._refit()

    @abstractmethod
    def _refit(self) -> None:
        """Make anew what follows from the rows of the memory."""
