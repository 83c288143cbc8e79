"""The words that describe a network, in which it is named in files and between machines."""

import json
from dataclasses import asdict, dataclass
from typing import Any

from fedneighbors.neural._choice import Model, chosen_network
from fedneighbors.neural._network import Network

OWN = "own"
"""Stands for a module of the user's own, whose code is in no file and travels nowhere."""


@dataclass(frozen=True)
class Blueprint:
    """What a network is made from, but for its weights.

    Parameters
    ----------
    model : str
        ``"perceptron"`` or the name of another ready network; :data:`OWN` for the user's module.
    shape : tuple of int
        Of a row.
    n_outputs : int
        Scores.
    embedding : str
        Name of the layer whose output is memorized.
    head : tuple of str
        Names of the layers after it.
    hidden : tuple of int
        Widths of a perceptron's layers.
    """

    model: str
    shape: tuple[int, ...]
    n_outputs: int
    embedding: str = "body"
    head: tuple[str, ...] = ("head",)
    hidden: tuple[int, ...] = ()

    @classmethod
    def of(cls, asked: Any, shape: tuple[int, ...], n_outputs: int) -> "Blueprint":
        """Return what describes the network that an estimator asks for.

        Parameters
        ----------
        asked : estimator
            Its parameters ``model``, ``embedding``, ``head`` and ``hidden`` are read.
        shape : tuple of int
            Of a row.
        n_outputs : int
            Scores.
        """
        named = "perceptron" if asked.model is None else asked.model
        return cls(
            model=named if isinstance(named, str) else OWN,
            shape=tuple(map(int, shape)),
            n_outputs=int(n_outputs),
            embedding=str(asked.embedding),
            head=(asked.head,) if isinstance(asked.head, str) else tuple(asked.head),
            hidden=tuple(map(int, asked.hidden)),
        )

    @property
    def words(self) -> str:
        """The blueprint as JSON, the same for the same blueprint."""
        return json.dumps(asdict(self), sort_keys=True)

    @classmethod
    def read(cls, words: str) -> "Blueprint":
        """Return the blueprint that :attr:`words` wrote.

        Raises
        ------
        ValueError
            If they are none.
        """
        try:
            found: dict[str, Any] = json.loads(words)
            parts = {k: tuple(v) if isinstance(v, list) else v for k, v in found.items()}
            made = cls(**parts)  # type: ignore[arg-type]
        except (TypeError, AttributeError, RecursionError, json.JSONDecodeError) as error:
            raise ValueError(f"expected the words of a network, got {words[:80]!r}") from error
        numbers = (*made.shape, *made.hidden, made.n_outputs)
        texts = (made.model, made.embedding, *made.head)
        if not all(type(n) is int and 0 < n < 1 << 24 for n in numbers) or not all(
            type(text) is str for text in texts
        ):
            raise ValueError(f"expected names and sizes of a network, got {words[:80]!r}")
        return made

    def parameters(self, own: Model = None) -> dict[str, Any]:
        """Return the parameters of an estimator that asks for this network.

        Parameters
        ----------
        own : Network, module or callable
            The user's own, where there is one.
        """
        ready = None if self.model == "perceptron" else self.model
        return {
            "model": ready if own is None else own,
            "embedding": self.embedding,
            "head": self.head[0] if len(self.head) == 1 else self.head,
            "hidden": self.hidden,
        }

    def network(self, own: Model = None, *, seed: int = 0) -> Network:
        """Return the network.

        Parameters
        ----------
        own : Network, module or callable
            The user's own, where the blueprint says so.
        seed : int
            From which the weights of one that is made here follow.

        Raises
        ------
        ValueError
            If the user's own is missing, or has no such layers.
        """
        if self.model == OWN and own is None:
            raise ValueError("expected model=, the module that was trained: its code is not stored")
        return chosen_network(
            own if self.model == OWN else self.model,
            self.shape,
            self.n_outputs,
            embedding=self.embedding,
            head=self.head,
            hidden=self.hidden,
            seed=seed,
        )
