"""First phase of the paper: generators fitted to real rows sample rows of both classes."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from sklearn.model_selection import train_test_split

from experiments.datasets.omentum import load_omentum
from experiments.fedpnn.printed import MODIFIED, PRINTED, VANILLA, Network
from experiments.fedpnn.real import load_set
from fedneighbors._typing import Floats
from fedneighbors.methods.fedpnn._selection import class_sums, select_columns, welch_statistics
from fedneighbors.methods.fedpnn.synthesis import TabularSynthesizer

Labeled = tuple[Floats, npt.NDArray[np.int64]]

OMENTUM = "OVA Omentum"
SINGLE = "one vanilla CTGAN for both classes"
BRIEF = "modified CTGAN, one epoch"
GENERATORS: Mapping[str, Mapping[str, Any]] = {
    VANILLA: {"noise": "normal", "per_class": True},
    MODIFIED: {"noise": "mixture", "per_class": True},
    BRIEF: {"noise": "mixture", "per_class": True},
    SINGLE: {"noise": "normal", "per_class": False},
}
"""The paper has the first two, both of one generator for each class. The others are ours, to see
what is there before a generator has learned, and what one for both classes changes."""

_TEST_SHARE = 0.3
_N_SELECTED = 500


@dataclass(frozen=True, eq=False)
class RealRows:
    """Rows of a set, split into rows for generators and held-out rows.

    Parameters
    ----------
    title : str
        Name of the rows; identifies generated ones.
    train, test : (X, y)
        Seven and three tenths, with the same share of 1, the rarer class.
    """

    title: str
    train: Labeled
    test: Labeled


def real_rows(name: str, seed: int) -> RealRows:
    """Split a set's rows; keep OVA Omentum's most discriminative columns.

    The 500 columns of the largest t are chosen by the rows that generators see.

    Parameters
    ----------
    name : str
        A name in :data:`~.printed.PRINTED`.
    seed : int
        Of the split.
    """
    title = name
    if name == OMENTUM:
        data = load_omentum()
        title, x, y = data.name, data.x, data.y
    else:
        x, y = load_set(name)
    x, x_test, y, y_test = train_test_split(
        x, y, test_size=_TEST_SHARE, stratify=y, random_state=seed
    )
    if name == OMENTUM:
        statistics = welch_statistics(class_sums(x, y, 2, min_count=1))
        columns = select_columns(statistics, _N_SELECTED).columns
        x, x_test = x[:, columns], x_test[:, columns]
    return RealRows(title, (x, y), (x_test, y_test))


def synthetic_rows(name: str, generator: str, real: RealRows, *, seed: int, quick: bool) -> Labeled:
    """Fit the paper's generator and sample as many rows as Table 3.

    Negative rows are as many as the set has, positive ones make up the share of Table 3.

    Parameters
    ----------
    name : str
        A name in :data:`~.printed.PRINTED`.
    generator : str
        A name in :data:`GENERATORS`.
    real : RealRows
        The training rows are fitted to.
    seed : int
        Of the training and the rows.
    quick : bool
        A single epoch.
    """
    paper, settings = PRINTED[name], GENERATORS[generator]
    synthesizer = TabularSynthesizer(
        informed=False,
        repeated_share=None,
        random_state=seed,
        **settings,
        **_networks(
            paper.negative,
            paper.positive,
            per_class=settings["per_class"],
            brief=quick or generator == BRIEF,
        ),
    ).fit(*real.train)
    n_negative = int(np.sum(real.train[1] == 0) + np.sum(real.test[1] == 0))
    share = paper.positive_share
    sizes = (n_negative, round(n_negative * share / (1 - share)))
    made = [
        synthesizer.sample(n, label, random_state=2 * seed + label) for label, n in enumerate(sizes)
    ]
    return np.concatenate([x for x, _ in made]), np.concatenate([y for _, y in made])


def _networks(
    negative: Network, positive: Network, *, per_class: bool, brief: bool
) -> dict[str, Any]:
    """Return the synthesizer's arguments.

    One generator for both classes has the negative one's.
    """

    def arguments(network: Network) -> dict[str, Any]:
        epochs = 1 if brief else network.epochs
        return {"generator": network.generator, "critic": network.critic, "epochs": epochs}

    if not per_class:
        return arguments(negative)
    low, high = arguments(negative), arguments(positive)
    return {key: {0: low[key], 1: high[key]} for key in low}
