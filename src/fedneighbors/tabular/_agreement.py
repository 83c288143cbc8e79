"""Agreement of parties on columns, categories and fill values, in two exchanges.

Each party drafts a schema from its own file. The coordinator merges the drafts, and all parties
read their files by the result, so that a model equals that of the pooled table. Drafts disclose
column names, categories of single rows and, without an identity key, medians of the columns; a
privacy budget needs a declared schema instead.
"""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any, ClassVar

from fedneighbors.datasets._schema import Schema
from fedneighbors.datasets._schema_columns import CategoricalColumn, NumericColumn, SetColumn
from fedneighbors.errors import DataError, SchemaMismatch
from fedneighbors.federation._loop import Coordinator, gather
from fedneighbors.federation._messages import Message, message
from fedneighbors.federation._roles import Refused
from fedneighbors.tabular._model_file import keep_pending
from fedneighbors.tabular._schema import Receipt

Column = NumericColumn | CategoricalColumn


@message
class Draft:
    """A party's draft as TOML text."""

    toml: str


@message
class DraftRequest:
    """Request for a draft of the schema."""

    reply: ClassVar[type] = Draft


@message
class AgreedSchema:
    """Message with the common schema as TOML text."""

    reply: ClassVar[type] = Receipt
    toml: str


def agree_on_schema() -> Coordinator[Schema]:
    """Merge the parties' drafts, and send the result to all.

    Raises
    ------
    SchemaMismatch
        If columns differ in name or kind, or labels in name.
    """
    replies = yield gather(DraftRequest())
    drafts = {}
    for name, reply in replies.complete("the drafts of the schema").each.items():
        try:
            drafts[name] = Schema.from_toml(reply.toml)
        except DataError as error:
            raise SchemaMismatch(name, "(all)", "a valid schema", str(error)) from error
    schema = merge_drafts(drafts)
    replies = yield gather(AgreedSchema(schema.to_toml()))
    replies.complete("the schema")
    return schema


def merge_drafts(drafts: Mapping[str, Schema]) -> Schema:
    """Return the common schema of drafts, independent of the order of columns.

    The columns are in the order of the first party by name. A number column is filled with the
    median of the parties' fill values, if any. Categories are the union.

    Raises
    ------
    SchemaMismatch
        If columns differ in name or kind, or labels in name.
    """
    names = sorted(drafts)
    first = drafts[names[0]]
    for name in names[1:]:
        _check_names(name, first, drafts[name])
    columns = tuple(
        _merge_column({name: _column(drafts[name], column.name) for name in names})
        for column in first.columns
    )
    is_common = all(draft.classes == first.classes for draft in drafts.values())
    return replace(first, columns=columns, classes=first.classes if is_common else ())


def _check_names(party: str, first: Schema, other: Schema) -> None:
    missing = sorted(set(first.column_names) - set(other.column_names))
    if missing:
        raise SchemaMismatch(party, missing[0], f"a column {missing[0]!r}", "none")
    unknown = sorted(set(other.column_names) - set(first.column_names))
    if unknown:
        raise SchemaMismatch(party, unknown[0], "no such column", f"a column {unknown[0]!r}")
    if other.label != first.label:
        raise SchemaMismatch(party, other.label, f"label {first.label!r}", repr(other.label))


def _column(schema: Schema, name: str) -> Column:
    column = schema.columns[schema.column_names.index(name)]
    if isinstance(column, SetColumn):
        raise DataError(f"expected numbers or words in column {name!r}, not sets")
    return column


def _merge_column(by_party: Mapping[str, Column]) -> Column:
    """Return the common column; equal columns are returned unchanged."""
    (_, first), *others = by_party.items()
    for party, column in others:
        if type(column) is not type(first):
            expected, found = (
                "numbers" if isinstance(c, NumericColumn) else "words" for c in (first, column)
            )
            raise SchemaMismatch(party, column.name, expected, found)
    columns = list(by_party.values())
    if all(column == first for column in columns):
        return first
    fills = {column.missing for column in columns}
    if isinstance(first, CategoricalColumn):
        categories = {c for column in columns for c in getattr(column, "categories", ())}
        fill = min(fills - {"keep"}, default="keep")  # "missing", if a party has missing cells
        return CategoricalColumn(first.name, tuple(sorted(categories)), str(fill))
    numbers = [c.missing for c in columns if not isinstance(c.missing, str)]
    return NumericColumn(first.name, missing=median(numbers) if numbers else first.missing)


class AgreeingParty:
    """Wrapper that drafts a schema and stores the agreed one.

    Parameters
    ----------
    party : Party
        The wrapped party, created from its file with the schema stored before, if any.
    draft : Schema
        The draft, or the declared schema.
    path : path or None
        File of the agreed schema, which is unfinished until the model is; None if the party's own
        schema is declared.
    run : str
        Name of the run.
    """

    def __init__(self, party: Any, *, draft: Schema, path: Path | None, run: str = "") -> None:
        self.name = party.name
        self.accepts = (DraftRequest, AgreedSchema, *party.accepts)
        self._party = party
        self._draft = draft
        self._path = path
        self._run = run

    def __getattr__(self, name: str) -> Any:
        return getattr(self._party, name)

    def answer(self, request: Message) -> Message:
        """Return the reply to a request, or raise :class:`~fedneighbors.federation.Refused`."""
        match request:
            case DraftRequest():
                return Draft(self._draft.to_toml())
            case AgreedSchema():
                self._store(request.toml)
                return Receipt()
        return self._party.answer(request)

    def _store(self, toml: str) -> None:
        """Store the agreed schema if it fits the own draft.

        Otherwise the coordinator could merge categories, or clip numbers to a chosen range. A
        declared schema must be the agreed one.
        """
        try:
            agreed = Schema.from_toml(toml)
        except DataError as error:
            raise Refused("the agreed schema is invalid") from error
        misfit = find_misfit(agreed, self._draft)
        if misfit is not None:
            raise Refused("a column of the agreed schema does not fit this party", misfit)
        if self._path is not None:
            keep_pending(self._path, self._run, toml.encode("utf-8"))
        elif agreed != self._draft:
            raise Refused("the agreed schema differs from the declared one of this party")


def find_misfit(agreed: Schema, draft: Schema) -> str | None:
    """Return the first column in which a schema contradicts a draft.

    Numbers that fill gaps may differ, and the schema may have more categories.
    """
    unmatched = set(agreed.column_names) ^ set(draft.column_names)
    if agreed.label != draft.label:
        unmatched.add(draft.label)
    if unmatched:
        return min(unmatched)
    pairs = ((_column(agreed, name), _column(draft, name)) for name in agreed.column_names)
    return next((own.name for column, own in pairs if not _extends(column, own)), None)


def _extends(column: Column, own: Column) -> bool:
    """Return whether a column keeps all cells of a party.

    The party has no gaps in a column of words that keeps them, or of numbers that drops their rows.
    """
    if isinstance(column, CategoricalColumn) and isinstance(own, CategoricalColumn):
        fills = {own.missing, "missing"} if own.missing == "keep" else {own.missing}
        return column.missing in fills and set(own.categories) <= set(column.categories)
    if isinstance(column, NumericColumn) and isinstance(own, NumericColumn):
        is_filled = isinstance(column.missing, float) and own.missing != "keep"
        return column.bounds == own.bounds and (is_filled or column.missing == own.missing)
    return False
