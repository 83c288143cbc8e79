"""Changes of decoded messages that keep them well-formed, so that parties must judge them."""

import dataclasses
from collections.abc import Mapping

import numpy as np

NUMBERS = (0, 1, -1, 2, 7, 300, 2**16, 2**31 - 1, 2**40, 2**63 - 1, -(2**63))
REALS = (0.0, -0.0, 1.0, -1.0, 0.5, 1e-300, 5e-324, 1e150, 1e300, -1e300)
CELLS = (*REALS, np.nan, np.inf, -np.inf)
WORDS = ("", "x", "none", "a" * 90, "\N{COMBINING ACUTE ACCENT}")


def change_field(item, rng):
    """Return a copy of a message with one field changed, at any depth.

    Raises ValueError or TypeError if the class rejects the new value.
    """
    names = [field.name for field in dataclasses.fields(item)]
    name = rng.choice(names)
    return dataclasses.replace(item, **{name: change_value(getattr(item, name), rng)})


def change_value(value, rng):
    """Return another value of the same kind."""
    if dataclasses.is_dataclass(value):
        return None if rng.random() < 0.1 else change_field(value, rng)
    if isinstance(value, np.ndarray):
        return _change_array(value, rng)
    if isinstance(value, tuple):
        return _change_tuple(value, rng)
    if isinstance(value, Mapping):
        return _change_mapping(value, rng)
    if isinstance(value, bool | np.bool_):
        return not value
    if isinstance(value, int | np.integer):
        return rng.choice((*NUMBERS, int(value) + 1, int(value) - 1))
    if isinstance(value, float | np.floating):
        return rng.choice((*REALS, None))
    if isinstance(value, str):
        return rng.choice((*WORDS, value + "x"))
    if isinstance(value, bytes):
        return rng.choice((b"", value[:-1], value + b"\0", bytes(reversed(value))))
    return rng.choice((None, 0, 1.0, np.zeros(0), np.zeros(2, np.int64)))


def _change_array(array, rng):
    """Return an array of another shape or with other cells."""
    kind = rng.randrange(7)
    if kind == 0:
        return array[: len(array) // 2] if array.ndim else array
    if kind == 1:
        return np.concatenate([array, array]) if array.ndim and len(array) < 4096 else array
    if kind == 2:
        return array.reshape(-1) if array.ndim != 1 else array.reshape(1, -1)
    if kind == 3:
        return np.zeros((0,) * array.ndim, array.dtype)
    if kind == 4 and array.dtype.kind in "iu":
        return array.astype(rng.choice(("u1", "i4", "i8")))
    changed = np.array(array)
    if not changed.size:
        return np.zeros((1,) * changed.ndim, changed.dtype)
    place = rng.randrange(changed.size) if kind == 5 else slice(None)
    if changed.dtype.kind == "f":
        changed.reshape(-1)[place] = rng.choice(CELLS)
    elif changed.dtype.kind in "iu":
        limits = np.iinfo(changed.dtype)
        changed.reshape(-1)[place] = rng.choice((0, 1, limits.max, limits.min, limits.max // 2))
    else:
        changed.reshape(-1)[place] = rng.random() < 0.5
    return changed


def _change_tuple(value, rng):
    """Return a shorter, longer, reordered tuple, or one with another entry."""
    kind = rng.randrange(6)
    if kind == 0 or not value:
        return ()
    if kind == 1:
        return value[:-1]
    if kind == 2:
        return value + value
    if kind == 3:
        return value[::-1]
    if kind == 4:
        return (rng.choice((*WORDS, *NUMBERS, *REALS, True)), *value[1:])
    place = rng.randrange(len(value))
    return (*value[:place], change_value(value[place], rng), *value[place + 1 :])


def _change_mapping(value, rng):
    """Return a mapping without an entry, or with another one."""
    if not value:
        return {}
    key = rng.choice(sorted(value))
    others = {name: entry for name, entry in value.items() if name != key}
    kind = rng.randrange(3)
    if kind == 0:
        return others
    return others | {key if kind == 1 else key + "x": change_value(value[key], rng)}
