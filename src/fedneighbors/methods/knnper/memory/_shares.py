"""Votes of keys that came when classes had other shares than they have now."""

import numpy as np

from fedneighbors._typing import Floats, Integers


def class_weights(held: Integers, now: Integers, n_classes: int) -> Floats:
    """Return what a vote for each class weighs, so that keys speak for the shares of now [1]_.

    A key of a class says where its rows lie, whatever share of all rows the class has; but among
    the neighbors of a row are the more keys of a class the larger its share was. What it is now
    over what it is among all keys makes up for that.

    Parameters
    ----------
    held : int64 array of shape (n_keys,)
        Classes of the keys that vote.
    now : int64 array of shape (n_rows,)
        Classes of rows that came since the shares changed.
    n_classes : int
        Classes, which have one row together where nothing is known of them.

    Returns
    -------
    float64 array of shape (n_classes,)
        Above 0.

    References
    ----------
    .. [1] Saerens, Latinne and Decaestecker, "Adjusting the Outputs of a Classifier to New a Priori
       Probabilities", Neural Computation 14, 2002, Eq 2.4.
    """
    before, since = (
        np.bincount(labels, minlength=n_classes) + 1 / n_classes for labels in (held, now)
    )
    return np.asarray((since / since.sum()) / (before / before.sum()))


def weighed_anew(votes: Floats, weights: Floats) -> Floats:
    """Return shares of votes of which those for each class weigh so much.

    Parameters
    ----------
    votes : float64 array of shape (n_rows, n_classes)
        Rows sum to 1.
    weights : float64 array of shape (n_classes,)
        Above 0.
    """
    weighed = votes * weights
    return np.asarray(weighed / weighed.sum(axis=1, keepdims=True))
