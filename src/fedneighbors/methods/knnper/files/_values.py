"""What rows of a memory have in a file, classes or targets: refused where they cannot be."""

from typing import Any

import numpy as np
import numpy.typing as npt

from fedneighbors._typing import Floats
from fedneighbors.methods.knnper._settings import MemorySettings
from fedneighbors.methods.knnper.personal._client_state import OwnPart
from fedneighbors.methods.knnper.personal._mixtures import EXPERTS, Personal
from fedneighbors.methods.knnper.personal._regression import (
    NUMBER_EXPERTS,
    PersonalNumbers,
    refuse_of_classes,
)


def n_classes_of(overall: Floats) -> int | None:
    """Return how many classes there are, or None where numbers are predicted.

    Parameters
    ----------
    overall : float64 array of shape (n_classes,) or (2, n_outputs)
        What is known of all clients, as :class:`~.personal.own.OwnPart` has it.
    """
    return len(overall) if overall.ndim == 1 else None


def refuse_basis(classes: tuple[Any, ...], overall: Floats, pool: Floats | None) -> None:
    """Refuse what cannot be known of all clients.

    Parameters
    ----------
    classes : tuple of labels
        None where numbers are predicted.
    overall : float64 array of shape (n_classes,) or (2, n_outputs)
        Shares of the classes, or means and deviations of the targets.
    pool : float64 array of shape (n_experts,) or None
        Weights of the experts.

    Raises
    ------
    ValueError
        If shapes or values are out of range.
    """
    numbers = overall.ndim == 2
    if numbers and (classes or overall.shape[0] != 2 or not overall.shape[1]):
        raise ValueError("means and deviations do not fit the targets")
    if not numbers and (len(classes) < 2 or overall.shape != (len(classes),)):
        raise ValueError("shares do not fit the classes")
    positive = overall[1] if numbers else overall
    if not (np.isfinite(overall).all() and (positive > 0).all()):
        raise ValueError("shares of the classes, or deviations of the targets, are out of range")
    n_experts = len(NUMBER_EXPERTS if numbers else EXPERTS)
    if pool is not None and pool.shape != (n_experts,):
        raise ValueError(
            f"its pool weighs {pool.size} experts, that of this release {n_experts}; train it anew"
        )
    if pool is not None and not np.isfinite(pool).all():
        raise ValueError("weights of the pool are not finite")


def refuse_values(values: npt.NDArray[Any], overall: Floats) -> None:
    """Refuse classes or targets that no row of a memory can have.

    Parameters
    ----------
    values : array of shape (n_rows,) or (n_rows, n_outputs)
        Positions of classes, or targets in standard units.
    overall : float64 array of shape (n_classes,) or (2, n_outputs)
        What is known of all clients.

    Raises
    ------
    ValueError
        If one is none of the classes, or no finite number, or shapes do not fit.
    """
    n_classes = n_classes_of(overall)
    if n_classes is None:
        shape = (len(values), overall.shape[1])
        if values.dtype != np.float64 or values.shape != shape or not np.isfinite(values).all():
            raise ValueError(f"targets of a memory are not {overall.shape[1]} numbers for each row")
        return
    if values.ndim != 1 or values.dtype.kind not in "iu":
        raise ValueError("labels of a memory are no classes")
    if len(values) and not 0 <= values.min() <= values.max() < n_classes:
        raise ValueError("a label is none of the classes")


def refuse_settings(settings: MemorySettings, overall: Floats) -> None:
    """Refuse settings that a memory of targets cannot have.

    Parameters
    ----------
    settings : MemorySettings
        Of a client, or of those who come later.
    overall : float64 array of shape (n_classes,) or (2, n_outputs)
        What is known of all clients.

    Raises
    ------
    ValueError
        If they ask for what only classes have.
    """
    if n_classes_of(overall) is not None:
        return
    refuse_of_classes(settings.strategy, settings.memory)


def own_part(
    memory: Any,
    weight: float,
    overall: Floats,
    pool: Floats | None,
    settings: MemorySettings,
) -> OwnPart:
    """Return a client's own part, of classes or of numbers as ``overall`` tells.

    Parameters
    ----------
    memory, weight, overall, pool, settings
        As :class:`~.personal.own.OwnPart` takes them.
    """
    kind = PersonalNumbers if n_classes_of(overall) is None else Personal
    return kind(memory, weight, overall, pool, settings)
