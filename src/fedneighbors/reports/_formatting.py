"""Readable numbers and text: units such as kB and ms, few significant digits."""

import math
from collections.abc import Sequence

from fedneighbors.records import Scalar

_DASH = "\N{EN DASH}"
_MINUS = "\N{MINUS SIGN}"
_MAX_FLOAT = 10**300  # larger integers are not converted to float
_SUPERSCRIPTS = str.maketrans("0123456789-", "⁰¹²³⁴⁵⁶⁷⁸⁹⁻")


def is_bytes(column: str) -> bool:
    """Return whether a column of this name holds bytes."""
    return column == "bytes" or column.endswith("_bytes")


def is_seconds(column: str) -> bool:
    """Return whether a column of this name holds seconds."""
    return column == "seconds" or column.endswith("_s")


def format_heading(column: str) -> str:
    """Return a column name as a heading, without its unit.

    The formatted values of the column have the unit.

    Examples
    --------
    >>> [format_heading(column) for column in ("upload_bytes", "fit_s", "n_parties", "bytes")]
    ['upload', 'fit', 'n parties', 'bytes']
    """
    if is_bytes(column):
        column = column.removesuffix("_bytes")
    elif is_seconds(column):
        column = column.removesuffix("_s")
    return column.replace("_", " ")


def format_bytes(n_bytes: float) -> str:
    """Format a number of bytes with three significant digits and a unit.

    The unit (kB is 1000 bytes) is chosen so that the number is below 1000, up to PB.

    Examples
    --------
    >>> [format_bytes(n) for n in (0, 999, 1000, 123_456, 9_999_999, 5e9)]
    ['0 B', '999 B', '1 kB', '123 kB', '10 MB', '5 GB']
    """
    if not math.isfinite(n_bytes):
        return format_number(n_bytes)
    value, unit = float(n_bytes), "B"
    for next_unit in ("kB", "MB", "GB", "TB", "PB"):
        if abs(_round_significant(value, 3)) < 1000:
            break
        value, unit = value / 1000, next_unit
    return f"{_format_decimal(_round_significant(value, 3))} {unit}"


def format_seconds(seconds: float) -> str:
    """Format a number of seconds in a readable unit.

    Examples
    --------
    >>> [format_seconds(s) for s in (0, 0.000012, 0.0345, 2.5, 119.6, 125, 7260)]
    ['0 s', '12 µs', '34.5 ms', '2.5 s', '120 s', '2 min 5 s', '2 h 1 min']
    """
    if not math.isfinite(seconds) or seconds < 0:
        return f"{format_number(seconds)} s"
    if seconds == 0 or 1 <= _round_significant(seconds, 3) <= 120:
        return f"{_format_decimal(_round_significant(seconds, 3))} s"
    if seconds < 1:
        factor, unit = (1e3, "ms") if _round_significant(seconds, 3) >= 1e-3 else (1e6, "µs")
        return f"{_format_decimal(_round_significant(seconds * factor, 3))} {unit}"
    if seconds >= 1e9:
        return f"{format_number(seconds)} s"
    minutes, seconds_left = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {seconds_left} s"
    return f"{minutes // 60:,} h {minutes % 60} min"


def format_number(value: float) -> str:
    """Format a number; a float is rounded to four significant digits.

    Very large and very small numbers are written with a power of ten.

    Examples
    --------
    >>> [format_number(x) for x in (0.123456, 1_234_567, 12.0, 0.00001234, 3e40)]
    ['0.1235', '1,234,567', '12', '1.234×10⁻⁵', '3×10⁴⁰']
    """
    if math.isnan(value):
        return "n/a"
    if math.isinf(value):
        return "∞" if value > 0 else f"{_MINUS}∞"
    if isinstance(value, int) and abs(value) < 10**15:
        return _replace_minus(f"{value:,}" if abs(value) >= 10_000 else str(value))
    if value != 0 and not 1e-4 <= abs(value) < 1e15:
        mantissa, exponent = f"{value:.3e}".split("e")
        power = str(int(exponent)).translate(_SUPERSCRIPTS)
        return _replace_minus(f"{_format_decimal(float(mantissa))}\N{MULTIPLICATION SIGN}10{power}")
    return _format_decimal(_round_significant(value, 4))


def format_cells(column: str, values: Sequence[Scalar]) -> list[str]:
    """Format the cells of a column.

    Floats get the same number of decimals, except in columns of bytes or seconds, and if their
    sizes differ too much.

    Parameters
    ----------
    column : str
        Name of the column; it determines whether values are bytes or seconds.
    values : sequence of scalars
        One per row.

    Examples
    --------
    >>> format_cells("accuracy", [0.9, 0.87654, None, "none"])
    ['0.9000', '0.8765', '–', 'none']
    >>> format_cells("upload_bytes", [1500, None]), format_cells("fit_s", [0.5])
    (['1.5 kB', '–'], ['500 ms'])
    """
    decimals = _choose_decimals([value for value in values if isinstance(value, float)])
    return [_format_cell(column, value, decimals) for value in values]


def _format_cell(column: str, value: Scalar, decimals: int | None) -> str:
    if value is None:
        return _DASH
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "yes" if value else "no"
    if abs(value) > _MAX_FLOAT and isinstance(value, int):  # too large for a float
        return str(value)
    if is_bytes(column):
        return format_bytes(value)
    if is_seconds(column):
        return format_seconds(value)
    if decimals is None or isinstance(value, int) or not math.isfinite(value):
        return format_number(value)
    return _replace_minus(f"{value:,.{decimals}f}")


def _choose_decimals(values: Sequence[float]) -> int | None:
    """Return a number of decimals for all values, or None.

    It shows four significant digits of the largest value, or fewer if no value has more decimals.
    It is None if the values differ by a factor above 1000, or are too large or too small.
    """
    sizes = [abs(value) for value in values if math.isfinite(value) and value != 0]
    if not sizes or min(sizes) < 1e-3 * max(sizes) or not 1e-3 <= max(sizes) < 1e6:
        return None
    decimals = max(0, 3 - math.floor(math.log10(max(sizes))))
    return max(len(f"{value:.{decimals}f}".rstrip("0").partition(".")[2]) for value in sizes)


def _round_significant(value: float, digits: int) -> float:
    return float(f"{value:.{digits - 1}e}")


def _format_decimal(value: float) -> str:
    """Format with at most 12 decimals, grouped digits and no trailing zeros."""
    return _replace_minus(f"{value:,.12f}".rstrip("0").rstrip("."))


def _replace_minus(text: str) -> str:
    """Put a minus sign for a leading hyphen, ``0`` for ``-0``."""
    return "0" if text == "-0" else _MINUS + text[1:] if text.startswith("-") else text


def to_printable(text: str, max_length: int = 40) -> str:
    r"""Put spaces for unprintable characters; cut to a maximum length.

    Examples
    --------
    >>> to_printable("a\tb"), to_printable("abcdefgh", 5)
    ('a b', 'abcd…')
    """
    visible = "".join(character if character.isprintable() else " " for character in text)
    return visible if len(visible) <= max_length else visible[: max_length - 1] + "…"
