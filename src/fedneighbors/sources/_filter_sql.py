"""Filters of a search as conditions of PostgreSQL, for which ordinary indexes can be used.

A comparison has the column itself on one side, without a cast or a function around it, if the type
of the column allows that. ``not`` is moved to the comparisons, so that a condition that is NULL may
count as false everywhere.
"""

import math
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any

from fedneighbors._lazy import optional_module
from fedneighbors.methods.fedknn._filters import Where

sql: Any = optional_module("psycopg.sql", "sql")  # this module is imported for databases only

_CASTS = {"number": "double precision", "boolean": "boolean", "molecule": "mol"}
_INTEGERS = ("int2", "int4", "int8")
_FLOATS = ("float4", "float8")
_TIME = "replace(to_char({}, 'YYYY-MM-DD HH24:MI:SS.US'), '.000000', '')"
_TEXTS = {
    "timestamp": _TIME,
    "timestamptz": _TIME.format("{} AT TIME ZONE 'UTC'") + " || '+00:00'",
}
_OPPOSITE = {">=": "<", "<": ">=", ">": "<=", "<=": ">"}


class Values(dict[str, Any]):
    """Values that are bound to a statement; none is ever part of its text."""

    def bind(self, value: Any) -> Any:
        """Return the placeholder of a value."""
        name = f"v{len(self)}"
        self[name] = value
        return sql.Placeholder(name)


def quote_name(*parts: str) -> Any:
    """Return a quoted name for a statement with values."""
    # a single % would begin a placeholder
    doubled = [part.replace("%", "%%") for part in parts]
    return sql.Identifier(*doubled)


def text_sql(column: Any, type_: str) -> Any:
    """Return the expression of the text that `cell_to_text` returns."""
    return sql.SQL(_TEXTS.get(type_, "{}::text")).format(column)


def filter_sql(
    where: Where,
    kinds: Mapping[str, str],
    types: Mapping[str, str],
    values: Values,
    *,
    holds: bool = True,
) -> Any:
    """Return the condition of rows that meet a filter, or do not.

    Parameters
    ----------
    where : mapping
        A filter that suits the columns.
    kinds : mapping of str to {"number", "text", "boolean", "molecule"}
        Kind of each column.
    types : mapping of str to str
        PostgreSQL's name of each column's type, such as int4.
    values : Values
        Takes the operands.
    holds : bool
        False for the rows that do not meet the filter.
    """
    parts = []
    for name, condition in where.items():
        if name == "not":
            parts.append(filter_sql(condition, kinds, types, values, holds=not holds))
        elif name in ("and", "or"):
            inner = [filter_sql(one, kinds, types, values, holds=holds) for one in condition]
            parts.append(_join(inner, is_and=(name == "and") == holds))
        else:
            column = _Column(name, kinds[name], types[name], values)
            has_operators = isinstance(condition, Mapping)
            for symbol, operand in (condition if has_operators else {"==": condition}).items():
                parts.append(column.compare(symbol, operand, holds=holds))
    return _join(parts, is_and=holds)


def _join(parts: Sequence[Any], *, is_and: bool) -> Any:
    start, word = ("true", " AND ") if is_and else ("false", " OR ")
    return sql.SQL("({})").format(sql.SQL(word).join([sql.SQL(start), *parts]))


class _Column:
    """A column of filters in conditions.

    Parameters
    ----------
    name, kind, type_ : str
        Name, kind, and PostgreSQL's type.
    values : Values
        Takes the operands.
    """

    def __init__(self, name: str, kind: str, type_: str, values: Values) -> None:
        self._sql, self._type, self._values = sql.SQL, type_, values
        self._column = self._plain = quote_name(name)
        self._is_text = kind == "text"
        self._is_integer = kind == "number" and type_ in _INTEGERS
        self._has_nan = kind == "number" and not self._is_integer  # NaN is a missing cell
        if self._is_text:
            self._column = text_sql(self._plain, type_)
        elif not (self._is_integer or (kind == "number" and type_ in _FLOATS)):
            self._column = sql.SQL("{}::" + _CASTS[kind]).format(self._plain)

    def compare(self, symbol: str, operand: Any, *, holds: bool) -> Any:
        """Return the condition that a comparison holds, or that it does not."""
        if symbol == "substructure":
            text = "{} @> {}::qmol" if holds else "NOT {} @> {}::qmol"
            found = self._sql(text).format(self._column, self._values.bind(operand))
            return found if holds else _join([found, self._test_missing()], is_and=False)
        if symbol not in _OPPOSITE:
            return self._compare_equal(list(operand) if symbol == "in" else [operand], holds=holds)
        found = self._compare_order(symbol if holds else _OPPOSITE[symbol], operand)
        return found if holds else _join([found, self._test_missing()], is_and=False)

    def _test_missing(self, *, holds: bool = True) -> Any:
        parts = [self._sql("{} IS NULL" if holds else "{} IS NOT NULL").format(self._plain)]
        if self._has_nan:
            text = "{} = 'NaN'" if holds else "{} <> 'NaN'"
            parts.append(self._sql(text).format(self._column))
        return _join(parts, is_and=not holds)

    def _compare_order(self, symbol: str, operand: float) -> Any:
        """Return an order relation to a number; false for missing cells."""
        if self._is_integer:
            value: Any = math.ceil(operand) if symbol in (">=", "<") else math.floor(operand)
        else:
            value = float(operand)
        parts = [self._sql(f"{{}} {symbol} {{}}").format(self._column, self._values.bind(value))]
        if symbol[0] == ">" and self._has_nan:  # NaN is above all numbers in PostgreSQL
            parts.append(self._sql("{} < 'NaN'").format(self._column))
        bounds = (operand, math.inf) if symbol[0] == ">" else (-math.inf, operand)
        return _join([*parts, *self._near(*bounds)], is_and=True)

    def _near(self, lowest: float, highest: float) -> list[Any]:
        """Return conditions that follow from those on rounded decimals, for an index."""
        if self._type != "numeric" or not self._has_nan:
            return []
        limits = {
            ">=": math.nextafter(lowest, -math.inf),
            "<=": math.nextafter(highest, math.inf),
        }
        return [
            self._sql(f"{{}} {symbol} {{}}").format(self._plain, self._values.bind(Decimal(limit)))
            for symbol, limit in limits.items()
            if math.isfinite(limit)
        ]

    def _compare_equal(self, operands: list[Any], *, holds: bool) -> Any:
        """Return the condition that a cell is among operands."""
        known = [one for one in operands if _may_be_cell(one)]
        if self._is_integer:
            known = [int(one) for one in known if one == int(one)]
        elif self._has_nan:
            known = [float(one) for one in known]
        text, cells = "{} = ANY({})" if holds else "{} <> ALL({})", self._values.bind(known)
        found = self._sql(text).format(self._column, cells)
        if self._is_text:  # other collations may have equal texts of other characters
            alike = self._sql('({} COLLATE "C")').format(self._column)
            same = self._sql(text).format(alike, cells)
            found = _join([found, same], is_and=True) if holds else same
        if holds and known and self._has_nan:
            found = _join([found, *self._near(min(known), max(known))], is_and=True)
        has_none = None in operands
        if holds and not has_none:
            return found
        may_be_missing = holds or not has_none
        missing = self._test_missing(holds=may_be_missing)
        return _join([found, missing], is_and=not may_be_missing)


def _may_be_cell(operand: Any) -> bool:
    """Return whether a cell may equal an operand."""
    if not isinstance(operand, str):
        return operand is not None
    return "\0" not in operand and operand.encode(errors="replace").decode() == operand
