"""Readable numbers and text: units such as kB and ms, few digits."""

import math
from collections.abc import Sequence

from fedneighbors.records import Scalar

_DASH = "\N{EN DASH}"
_MINUS = "\N{MINUS SIGN}"
_MAX_NUMBER = 10**300
_SUPERSCRIPTS = str.maketrans("0123456789-", "⁰¹²³⁴⁵⁶⁷⁸⁹⁻")


def is_bytes(column: str) -> bool:
    """Return whether a column of this name holds bytes."""
    return column == "bytes" or column.endswith("_bytes")


def is_seconds(column: str) -> bool:
    """Return whether a column of this name holds seconds."""
    return column == "seconds" or column.endswith("_s")


def heading(column: str) -> str:
    """Return a column name as a heading, without its unit.

    Values carry the unit.

    Examples
    --------
    >>> heading("upload_bytes"), heading("fit_s"), heading("n_parties"), heading("bytes")
    ('upload', 'fit', 'n parties', 'bytes')
    """
    if is_bytes(column):
        column = column.removesuffix("_bytes")
    elif is_seconds(column):
        column = column.removesuffix("_s")
    return column.replace("_", " ")


def size(n_bytes: float) -> str:
    """Format bytes in a decimal unit with three significant digits.

    The number is between 1 and 999.

    Examples
    --------
    >>> size(0), size(999), size(1000), size(123_456), size(9_999_999), size(5e9)
    ('0 B', '999 B', '1 kB', '123 kB', '10 MB', '5 GB')
    """
    if not math.isfinite(n_bytes):
        return number(n_bytes)
    value, unit = float(n_bytes), "B"
    for larger in ("kB", "MB", "GB", "TB", "PB"):
        if abs(_round(value, 3)) < 1000:
            break
        value, unit = value / 1000, larger
    return f"{_plain(_round(value, 3))} {unit}"


def span(seconds: float) -> str:
    """Format seconds in a readable unit.

    Examples
    --------
    >>> span(0), span(0.000012), span(0.0345), span(2.5), span(119.6), span(125), span(7260)
    ('0 s', '12 µs', '34.5 ms', '2.5 s', '120 s', '2 min 5 s', '2 h 1 min')
    """
    if not math.isfinite(seconds) or seconds < 0:
        return f"{number(seconds)} s"
    if seconds == 0 or 1 <= _round(seconds, 3) <= 120:
        return f"{_plain(_round(seconds, 3))} s"
    if seconds < 1:
        factor, unit = (1e3, "ms") if _round(seconds, 3) >= 1e-3 else (1e6, "µs")
        return f"{_plain(_round(seconds * factor, 3))} {unit}"
    if seconds >= 1e9:
        return f"{number(seconds)} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    return f"{minutes // 60:,} h {minutes % 60} min"


def number(value: float, digits: int = 4) -> str:
    """Format a number with few significant digits.

    Powers of ten if it is very large or small.

    Examples
    --------
    >>> number(0.123456), number(1_234_567), number(12.0), number(0.00001234), number(3e40)
    ('0.1235', '1,234,567', '12', '1.234×10⁻⁵', '3×10⁴⁰')
    """
    if math.isnan(value):
        return "n/a"
    if math.isinf(value):
        return "∞" if value > 0 else f"{_MINUS}∞"
    if isinstance(value, int) and abs(value) < 10**15:
        return _sign(f"{value:,}" if abs(value) >= 10_000 else str(value))
    if value != 0 and not 1e-4 <= abs(value) < 1e15:
        mantissa, exponent = f"{value:.{digits - 1}e}".split("e")
        power = str(int(exponent)).translate(_SUPERSCRIPTS)
        return _sign(f"{_plain(float(mantissa))}\N{MULTIPLICATION SIGN}10{power}")
    return _plain(_round(value, digits))


def cells(column: str, values: Sequence[Scalar]) -> list[str]:
    """Format a column's cells with the same number of decimals.

    As many as the largest value needs.

    Parameters
    ----------
    column : str
        Name of the column; it determines whether values are bytes or seconds.
    values : sequence of scalars
        One per row.

    Examples
    --------
    >>> cells("accuracy", [0.9, 0.87654, None, "none"])
    ['0.9000', '0.8765', '–', 'none']
    >>> cells("upload_bytes", [1500, None]), cells("fit_s", [0.5])
    (['1.5 kB', '–'], ['500 ms'])
    """
    decimals = _shared_decimals([value for value in values if isinstance(value, float)])
    return [_cell(column, value, decimals) for value in values]


def _cell(column: str, value: Scalar, decimals: int | None) -> str:
    if value is None:
        return _DASH
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "yes" if value else "no"
    if abs(value) > _MAX_NUMBER and isinstance(value, int):  # too large for a float
        return str(value)
    if is_bytes(column):
        return size(value)
    if is_seconds(column):
        return span(value)
    if decimals is None or isinstance(value, int) or not math.isfinite(value):
        return number(value)
    return _sign(f"{value:,.{decimals}f}")


def _shared_decimals(values: Sequence[float]) -> int | None:
    """Return the decimals for four digits of the largest value.

    Fewer if all values need fewer.

    None if the values differ too much for one number of decimals.
    """
    sizes = [abs(value) for value in values if math.isfinite(value) and value != 0]
    if not sizes or min(sizes) < 1e-3 * max(sizes) or not 1e-3 <= max(sizes) < 1e6:
        return None
    most = max(0, 3 - math.floor(math.log10(max(sizes))))
    return max(len(f"{value:.{most}f}".rstrip("0").partition(".")[2]) for value in sizes)


def _round(value: float, digits: int) -> float:
    return float(f"{value:.{digits - 1}e}")


def _plain(value: float) -> str:
    """Return the shortest decimal form, grouped by thousands."""
    return _sign(f"{value:,.12f}".rstrip("0").rstrip("."))


def _sign(text: str) -> str:
    if text in ("-0", "0"):
        return "0"
    return text.replace("-", _MINUS, 1) if text.startswith("-") else text


def printable(text: str, longest: int = 40) -> str:
    r"""Return text without control characters, cut to a maximum length.

    Examples
    --------
    >>> printable("a\tb"), printable("abcdefgh", 5)
    ('a b', 'abcd…')
    """
    shown = "".join(letter if letter.isprintable() else " " for letter in text)
    return shown if len(shown) <= longest else shown[: longest - 1] + "…"
