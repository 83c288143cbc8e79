"""A memory that keeps codes of keys: all that an exact one does, in fewer bytes."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from fedneighbors._typing import Floats, Integers
from fedneighbors.errors import RebuildNeeded
from fedneighbors.methods.knnper.memory._datastore import Datastore
from fedneighbors.methods.knnper.memory._neighbors import Neighbors, refuse_infinite
from fedneighbors.methods.knnper.memory._rows import RowWindow
from fedneighbors.methods.knnper.memory.compression._codes import (
    Bytes,
    Codec,
    refuse_foreign,
    refuse_wide,
)


@dataclass
class CodedDatastore(Datastore):
    """Keys as codes, with the capacity and the strategies of :class:`~.datastore.Datastore`.

    Labels take as few bytes as ``n_classes`` allows.

    Parameters
    ----------
    n_dimensions, capacity, strategy, random_state, n_classes, search, n_beside
        As :class:`~.datastore.Datastore` takes them. Codes have searches of their own, so that
        ``search`` changes nothing, and nothing stands beside them: ``n_beside`` is 0.
    codec : Codec
        How keys become codes. One that learns does so from the first rows that come.

    Examples
    --------
    >>> from fedneighbors.methods.knnper.memory.compression._eightbit import EightBitCodec
    >>> memory = CodedDatastore(2, n_classes=3, codec=EightBitCodec(2))
    >>> memory.add([[0.0, 1.0], [5.0, 5.0]], [2, 0]).nearest(np.array([[4.0, 4.0]]), 1).positions
    array([[1]])
    >>> memory.nbytes  # a scale of 8 bytes, two cells and a label for each row
    22
    """

    codec: Codec = field(kw_only=True)

    @property
    def keys(self) -> Floats:
        """The keys that the codes stand for, made anew each time; shape (n_keys, n_dimensions)."""
        return self.codec.decode(self.codes) if len(self) else np.empty((0, self.n_dimensions))

    @property
    def codes(self) -> Bytes:
        """Code of each key; a view. Shape (n_keys, n_bytes)."""
        return np.asarray(self._rows.keys)

    @property
    def nbytes(self) -> int:
        """Bytes of codes, of labels, and of what the codec learned from rows of this memory."""
        return super().nbytes + (self.codec.nbytes if self.codec.learned_here else 0)

    def forget(self, ids: Iterable[object]) -> "CodedDatastore":
        """Delete keys by their names; nothing of them stays.

        Parameters
        ----------
        ids : iterable of str or int
            Names, as :meth:`add` was given them.

        Raises
        ------
        TypeError
            If it is a single name and no list.
        KeyError
            If a name is not here; nothing was deleted then.
        RebuildNeeded
            If the codec was learned from the rows, of which it would tell on.
        """
        if self.codec.learned_here:
            raise RebuildNeeded(
                "the codebook was learned from these rows and would keep what was forgotten; build "
                "the memory anew from the rows that stay, or use a codebook learned elsewhere"
            )
        super().forget(ids)
        return self

    def restore_codes(
        self,
        codes: Bytes,
        labels: npt.NDArray[Any],
        ids: Sequence[str],
        state: dict[str, Any],
        codec: Codec | None = None,
    ) -> "CodedDatastore":
        """Become the memory whose parts these are, as :meth:`restore` does of keys.

        Parameters
        ----------
        codes : uint8 array of shape (n_keys, n_bytes)
            Its :attr:`codes`.
        labels, ids, state
            As :meth:`restore` takes them.
        codec : Codec, optional
            The one that made the codes. None: the one that this memory was given.

        Raises
        ------
        ValueError
            If they are no parts of a memory.
        """
        self.codec = self.codec if codec is None else codec
        self.codec.refuse_codes(codes)
        values = self._narrowed(np.asarray(labels))
        if len(values) != len(codes):
            raise ValueError(f"expected a label for each of {len(codes)} codes, got {len(values)}")
        self._rows = RowWindow(codes, values, self._names(len(codes), ids))
        self._go_on_from(state)
        return self

    def nearest(self, queries: Floats, k: int, *, own: Integers | None = None) -> Neighbors:
        """Return the k nearest of the keys that the codes stand for; ties to the earlier row.

        Raises
        ------
        ValueError
            If a query is not finite, or k is below 1.
        """
        refuse_infinite(queries)
        if not len(self):
            return Neighbors(np.empty((len(queries), 0), np.int64), np.empty((len(queries), 0)))
        return self.codec.nearest(self.codes, queries, k, own=own)

    def _emptied(self, labels: npt.NDArray[Any]) -> RowWindow:
        return RowWindow(np.empty((0, self.codec.n_bytes), np.uint8), self._narrowed(labels[:0]))

    def _held(self, rows: Floats) -> Bytes:
        if not len(rows):
            return self.codes[:0]
        codec = self.codec.fitted(rows)
        if codec is not self.codec:  # only the first rows teach a codec
            self.codec = codec
            self._rows = self._emptied(self._rows.labels)
        return codec.encode(rows)

    def _checked(
        self, keys: npt.ArrayLike, labels: npt.ArrayLike, ids: Iterable[object] | None
    ) -> tuple[Floats, npt.NDArray[Any], list[str]]:
        rows, values, names = super()._checked(keys, labels, ids)
        refuse_wide(rows)
        return rows, self._narrowed(values), names

    def _narrowed(self, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Return classes in as few bytes as hold them all, and other values as they are."""
        if self.n_classes is None or values.dtype.kind not in "iu":
            return values
        refuse_foreign(values, self.n_classes)
        return values.astype(np.min_scalar_type(self.n_classes - 1))
