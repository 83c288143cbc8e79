"""One codebook for the memories of all clients, learned on rows that are nobody's."""

from dataclasses import replace
from typing import Any, Literal, Self

from sklearn.utils.validation import check_is_fitted

from fedneighbors.methods.knnper._membership import Personalized
from fedneighbors.methods.knnper._settings import MemorySettings
from fedneighbors.methods.knnper.memory._codes import Codebook, shared_codec
from fedneighbors.methods.knnper.personal._view import in_metric


class Compressing(Personalized):
    """What estimators have in common whose clients can share a codebook, once they are fitted."""

    @property
    def codebook_(self) -> Codebook | None:
        """The codebook that all clients share; None before :meth:`share_codebook`."""
        codec = self._memory_settings.codec
        return None if codec is None else codec.book

    def share_codebook(self, X: Any, *, n_stretches: int = 8, bits: Literal[4, 8] = 8) -> Self:
        """Learn a codebook on public rows, and keep all memories as codes by it.

        A key becomes ``n_stretches`` numbers of ``bits`` bits: with the defaults 8 bytes in place
        of the 512 of an embedding of 128 numbers. Clients that come later get the same codebook,
        and rows come and go as before. It tells nothing of any client's rows, so that
        :meth:`forget` leaves nothing of them; what it tells is told of ``X``. Keys are given up:
        there is no way back but a new :meth:`fit`. Each client's weight of its memory stays what
        :meth:`fit` chose with all of each key.

        Parameters
        ----------
        X : array of shape (n_rows, ...)
            Rows that are nobody's, such as those of a public data set, and like those of the
            clients. A few hundred at least: each stretch has ``2 ** bits`` entries, or as many as
            there are rows.
        n_stretches : int
            Into how many parts a key is cut; more of them keep more of it.
        bits : {4, 8}
            Of the number of an entry.

        Returns
        -------
        self

        Raises
        ------
        ValueError
            If memories are not exact, or belong to a pool, whose heads are made of whole keys; if
            clients chose among metrics, each of which would need a codebook; or if a parameter is
            out of range.
        DataError
            If an embedding is not finite, or beyond what 32 bits hold. No memory is changed then.

        Examples
        --------
        >>> from sklearn.datasets import load_digits
        >>> from fedneighbors import KNNPerClassifier
        >>> X, y = load_digits(return_X_y=True)
        >>> public, X, y = X[:500] / 16, X[500:] / 16, y[500:]
        >>> writer = ["ann" if label < 5 else "bob" for label in y]
        >>> model = KNNPerClassifier(n_rounds=5).fit(X, y, parties=writer)
        >>> before = model.clients_["ann"].memory.keys.astype("float32").nbytes
        >>> before // model.share_codebook(public).clients_["ann"].memory.codes.nbytes
        64
        >>> model.score(X, y, parties=writer) > 0.95
        True
        """
        check_is_fitted(self)
        settings: MemorySettings = self._memory_settings
        _refuse_unsuited(settings)
        keys = in_metric(self.embed(X)[0], settings.metrics[0])
        codec = shared_codec(keys, n_stretches=n_stretches, bits=bits, random_state=settings.seed)
        self.clients_ = {name: own.coded(codec) for name, own in self.clients_.items()}
        self._memory_settings = replace(settings, memory="product", codec=codec)
        return self


def _refuse_unsuited(settings: MemorySettings) -> None:
    """Refuse memories that cannot become codes by one book."""
    if settings.memory != "exact":
        raise ValueError(
            f"expected memories that keep their keys, memory='exact', got {settings.memory!r}; fit "
            "anew, and share a codebook then"
        )
    if settings.combine != "paper":
        raise ValueError(
            f"expected combine='paper', got {settings.combine!r}: the heads of a pool are made of "
            "whole keys and rows; fit with combine='paper', or with memory='8-bit', whose pool is "
            "weighed for its codes"
        )
    if len(settings.metrics) > 1:
        raise ValueError(
            f"expected one metric, got {settings.metrics}: keys of each would need a codebook of "
            "their own; fit with one"
        )
