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
"""The paper has the first two, with one generator per class. The others are ours: a generator that
has hardly learned, and a single generator for both classes."""

_TEST_SHARE = 0.3
_N_SELECTED = 500


@dataclass(frozen=True, eq=False)
class RealRows:
    """Rows of a set, split into rows for generators and held-out rows.

    Parameters
    ----------
    title : str
        Name of the rows; a surrogate has its own.
    train, test : (X, y)
        Seven and three tenths of the rows, stratified; class 1 is the rarer one.
    """

    title: str
    train: Labeled
    test: Labeled


def split_real_rows(name: str, seed: int) -> RealRows:
    """Split a set's rows; keep OVA Omentum's most discriminative columns.

    The 500 columns with the largest t statistics are chosen on the training rows.

    Parameters
    ----------
    name : str
        A name in :data:`~.printed.PRINTED`.
    seed : int
        Seed of the split.
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


def sample_synthetic_rows(
    name: str, generator: str, real: RealRows, *, seed: int, quick: bool
) -> Labeled:
    """Fit a generator and sample rows as in Table 3.

    There are as many negative rows as in the data set; positive ones make up the share of Table 3.

    Parameters
    ----------
    name : str
        A name in :data:`~.printed.PRINTED`.
    generator : str
        A name in :data:`GENERATORS`.
    real : RealRows
        Real rows; the generator is fitted to the training part.
    seed : int
        Seed of training and sampling.
    quick : bool
        Train for one epoch.
    """
    paper, settings = PRINTED[name], GENERATORS[generator]
    synthesizer = TabularSynthesizer(
        informed=False,
        repeated_share=None,
        min_count=None,
        random_state=seed,
        **settings,
        **_network_arguments(
            paper.negative,
            paper.positive,
            per_class=settings["per_class"],
            brief=quick or generator == BRIEF,
        ),
    ).fit(*real.train)
    n_negative = int(np.sum(real.train[1] == 0) + np.sum(real.test[1] == 0))
    share = paper.positive_share
    sizes = (n_negative, round(n_negative * share / (1 - share)))
    parts = [
        synthesizer.sample(n, label, random_state=2 * seed + label) for label, n in enumerate(sizes)
    ]
    return np.concatenate([x for x, _ in parts]), np.concatenate([y for _, y in parts])


def _network_arguments(
    negative: Network, positive: Network, *, per_class: bool, brief: bool
) -> dict[str, Any]:
    """Return the synthesizer's arguments.

    A single generator for both classes has the architecture of the negative class.
    """

    def arguments(network: Network) -> dict[str, Any]:
        epochs = 1 if brief else network.epochs
        return {"generator": network.generator, "critic": network.critic, "epochs": epochs}

    if not per_class:
        return arguments(negative)
    low, high = arguments(negative), arguments(positive)
    return {key: {0: low[key], 1: high[key]} for key in low}
