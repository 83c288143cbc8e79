"""Budgets, charges and answers of a ledger: their values, and queries on their tables."""

import hashlib
import hmac
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from fractions import Fraction
from functools import lru_cache
from typing import Literal

from fedneighbors.errors import BudgetExceeded, LedgerError
from fedneighbors.privacy._accounting import difference, spent_by_counts, within
from fedneighbors.privacy._guarantees import ZCDP, ApproxDP, Guarantee, PureDP
from fedneighbors.privacy.ledger._chain import extend_chain, last_entry
from fedneighbors.privacy.ledger._file import LedgerFile

EntryKind = Literal["budget", "reserved", "released", "voided"]
"""``"budget"``: a budget was set; ``"reserved"``: a release was charged; ``"released"``: its answer
was stored; ``"voided"``: its charge was removed."""

Columns = tuple[str, str, str]
"""A guarantee as three texts: type, epsilon or rho as a fraction, and delta or an empty text."""

_NOTIONS: dict[str, type[Guarantee]] = {"pure": PureDP, "approx": ApproxDP, "zcdp": ZCDP}

# Characters. Longer texts are mistakes: an id of this package is a method, a run, a digest of 64
# characters and an epoch of 32; an e-mail address has at most 254, and 2,000 are half a page.
MAX_NAME_LENGTH = 500
_MAX_NOTE_LENGTH = 2000
_MAX_DIGITS = 1000  # below 4300, Python's limit for converting integers to text
_TOO_LARGE = 10**_MAX_DIGITS
_FRACTION = re.compile(f"[0-9]{{1,{_MAX_DIGITS}}}/[0-9]{{1,{_MAX_DIGITS}}}")


@dataclass(frozen=True)
class ChargeTerms:
    """Id, data set, user and cost of a release.

    If the id was charged before, data set, user and cost must equal those of the earlier charge.

    Parameters
    ----------
    query : str
        Id of the release.
    dataset : str
        Name of the data set.
    user : str
        Recipient of the answer.
    cost : Guarantee
        Cost of the release.
    purpose : str
        Description for people; may differ when the id is repeated.

    Raises
    ------
    ValueError
        If a name is empty, a text is too long or not printable, or the cost has too many digits.
    TypeError
        If a name or ``purpose`` is not a str, or ``cost`` is not a guarantee.
    """

    query: str
    dataset: str
    user: str
    cost: Guarantee
    purpose: str = ""

    def __post_init__(self) -> None:
        check_name(self.query, "query_id")
        check_name(self.dataset, "dataset")
        check_name(self.user, "user")
        check_text(self.purpose, "purpose")
        to_columns(self.cost)


@dataclass(frozen=True)
class LedgerEntry:
    """One entry of a ledger; entries are only appended.

    Parameters
    ----------
    number : int
        Position in the ledger, ascending.
    at : str
        Time in UTC, as ISO 8601.
    kind : {"budget", "reserved", "released", "voided"}
        See :data:`EntryKind`.
    dataset, user : str
        Data set and user of the budget or release. In a budget, an empty user means the whole data
        set.
    guarantee : Guarantee
        The budget, or the cost of the release.
    query : str
        Id of the release; empty in a budget.
    note : str
        Purpose of a release, or note on a budget.
    sha256 : str
        Digest of the answer in hex, if one is stored.
    size : int
        Bytes of the answer, if one is stored.
    chain : str
        Digest in hex of this entry and of all entries before it.
    """

    number: int
    at: str
    kind: EntryKind
    dataset: str
    user: str
    guarantee: Guarantee
    query: str = ""
    note: str = ""
    sha256: str = ""
    size: int = 0
    chain: str = ""


@dataclass(frozen=True)
class BudgetState:
    """A budget in force, with the amounts spent and left.

    Parameters
    ----------
    dataset, user : str
        Data set and user of the budget; the user is empty for the whole data set.
    allowed, spent, left : Guarantee
        Limit, total cost of the releases, and the difference; all of the budget's type.
    note : str
        Note on the budget.
    """

    dataset: str
    user: str
    allowed: Guarantee
    spent: Guarantee
    left: Guarantee
    note: str = ""


def to_columns(guarantee: Guarantee) -> Columns:
    """Return a guarantee as text for the file.

    Raises
    ------
    TypeError
        If it is not a guarantee.
    ValueError
        If a number has too many digits.

    Examples
    --------
    >>> to_columns(PureDP("0.5"))
    ('pure', '1/2', '')
    """
    for notion, kind in _NOTIONS.items():
        if isinstance(guarantee, kind):
            first, *second = map(_to_text, vars(guarantee).values())
            return notion, first, "".join(second)
    raise TypeError(f"expected a PureDP, ApproxDP or ZCDP, got {guarantee!r}")


@lru_cache(maxsize=256)
def from_columns(notion: str, first: str, second: str) -> Guarantee:
    """Return the guarantee that :func:`to_columns` converted to text.

    Raises
    ------
    LedgerError
        If the text has another format.
    """
    try:
        if not all(map(_FRACTION.fullmatch, filter(None, (first, second)))):
            raise ValueError("not a numerator and a denominator")  # Fraction would expand 1e999999
        return _NOTIONS[notion](*(Fraction(text) for text in (first, second) if text))
    except (KeyError, TypeError, ValueError, ZeroDivisionError) as error:
        raise LedgerError(
            f"the ledger has a guarantee that cannot be read: {notion} {first:.80} {second:.80}; "
            "restore the ledger from a backup"
        ) from error


def count_costs(rows: Iterable[tuple[str, str, str, int]]) -> Counter[Guarantee]:
    """Convert rows of a cost's columns and a number to a Counter."""
    return Counter({from_columns(*columns): number for *columns, number in rows})


def check_name(name: str, field: str) -> None:
    """Raise for an empty, too long or unprintable name.

    Raises
    ------
    TypeError, ValueError
        If it is invalid; the message names ``field``.
    """
    check_text(name, field, MAX_NAME_LENGTH)
    if not name:
        raise ValueError(f"expected a {field} that is not empty")


def check_text(text: str, field: str, max_length: int = _MAX_NOTE_LENGTH) -> None:
    """Raise if a text is too long or not printable.

    Raises
    ------
    TypeError, ValueError
        If it is invalid; the message names ``field``.
    """
    if not isinstance(text, str):
        raise TypeError(f"expected {field} as text, got {type(text).__name__}")
    if len(text) > max_length or not text.isprintable():
        raise ValueError(
            f"expected {field} of at most {max_length} printable characters, got {text[:40]!r} "
            f"({len(text)} characters)"
        )


def _to_text(number: Fraction) -> str:
    if max(number.numerator, number.denominator) >= _TOO_LARGE:
        raise ValueError(
            f"expected a numerator and a denominator of at most {_MAX_DIGITS} digits each; "
            "round the number up to fewer digits"
        )
    return f"{number.numerator}/{number.denominator}"


class LedgerTables:
    """Queries on the tables of a ledger file.

    The caller opens a transaction for writes.

    Parameters
    ----------
    file : LedgerFile
        File with the tables.
    """

    def __init__(self, file: LedgerFile) -> None:
        self._file = file

    def find(self, terms: ChargeTerms) -> tuple[bool, bytes | None]:
        """Return whether the id was charged, and its answer or None.

        Raises
        ------
        ValueError
            If it was charged under other terms.
        LedgerError
            If the stored answer was altered.
        """
        rows = self._file.rows(
            "SELECT dataset, user, notion, first, second, sha256, content "
            "FROM charge LEFT JOIN answer USING (query) WHERE query = ?",
            (terms.query,),
        )
        if not rows:
            return False, None
        dataset, user, *columns, digest, content = rows[0]
        if (dataset, user, *columns) != (terms.dataset, terms.user, *to_columns(terms.cost)):
            raise ValueError(
                f"query {terms.query!r} was first charged with data set {dataset!r}, user "
                f"{user!r}, {from_columns(*columns)}; got data set {terms.dataset!r}, user "
                f"{terms.user!r}, {terms.cost}; another release needs another id"
            )
        if content is not None and hashlib.sha256(content).hexdigest() != digest:
            raise LedgerError(
                f"ledger {self._file.path}: the answer of query {terms.query!r} was altered; "
                "restore the file"
            )
        return True, content

    def users_of(self, queries: Sequence[str]) -> dict[str, str]:
        """Return the user of each charged id."""
        placeholders = ", ".join("?" * len(queries))
        rows = self._file.rows(
            f"SELECT query, user FROM charge WHERE query IN ({placeholders})", queries
        )
        return dict(rows)

    def data_digest(self, dataset: str, content: bytes) -> str:
        """Return a digest of a data set under the ledger's key."""
        (key,) = self._file.rows("SELECT key FROM about")[0]
        name = dataset.encode("utf-8")
        return hmac.new(key, len(name).to_bytes(8) + name + content, "sha256").hexdigest()

    def find_epoch(self, digest: str) -> str | None:
        """Return the id that was stored for a digest."""
        rows = self._file.rows("SELECT id FROM epoch WHERE digest = ?", (digest,))
        return rows[0][0] if rows else None

    def add_epoch(self, digest: str, epoch: str) -> None:
        """Store the id of a digest unless there is one."""
        self._file.write("INSERT OR IGNORE INTO epoch VALUES (?, ?)", (digest, epoch))

    def check_budgets(self, terms: ChargeTerms) -> None:
        """Raise unless a charge fits the budgets of data set and user.

        Raises
        ------
        BudgetExceeded
            If it does not.
        """
        for user in ("", terms.user):
            budget = self.budget(terms.dataset, user)
            if budget is not None:
                self._check_budget(terms, user, budget)
            elif not user:
                raise BudgetExceeded(
                    terms.dataset, terms.user, str(terms.cost), "nothing, no budget was set"
                )

    def _check_budget(self, terms: ChargeTerms, user: str, budget: Guarantee) -> None:
        costs = self.costs(terms.dataset, user)
        costs[terms.cost] += 1
        try:
            fits, reason = within(spent_by_counts(costs, budget), budget), ""
        except ValueError as error:
            fits, reason = False, f" ({error})"
        if not fits:
            left = f"{self.left(terms.dataset, user)}{reason}"
            raise BudgetExceeded(terms.dataset, terms.user, str(terms.cost), left)

    def add_charge(self, terms: ChargeTerms) -> None:
        """Charge for a release."""
        self._file.write(
            "INSERT INTO charge VALUES (?, ?, ?, ?, ?, ?)",
            (terms.query, terms.dataset, terms.user, *to_columns(terms.cost)),
        )
        self._add_charge_entry("reserved", terms)

    def void_charge(self, terms: ChargeTerms) -> None:
        """Void a charge that has no answer."""
        self._file.write("DELETE FROM charge WHERE query = ?", (terms.query,))
        self._add_charge_entry("voided", terms)

    def add_answer(self, terms: ChargeTerms, answer: bytes) -> None:
        """Store the answer of a release that was charged."""
        digest = hashlib.sha256(answer).hexdigest()
        self._file.write("INSERT INTO answer VALUES (?, ?, ?)", (terms.query, digest, answer))
        self._add_charge_entry("released", terms, digest, len(answer))

    def add_budget(self, dataset: str, user: str, budget: Guarantee, note: str) -> None:
        """Add the entry of a budget; the newest is in force."""
        self._add_entry("budget", dataset, user, budget, note=note)

    def costs(self, dataset: str, user: str) -> Counter[Guarantee]:
        """Count the charges of each cost on a data set.

        If ``user`` is not empty, count those of this user only.
        """
        condition, values = (" AND user = ?", (dataset, user)) if user else ("", (dataset,))
        return count_costs(
            self._file.rows(
                f"SELECT notion, first, second, count(*) FROM charge WHERE dataset = ?{condition} "
                "GROUP BY notion, first, second",
                values,
            )
        )

    def spent(self, dataset: str, user: str) -> Guarantee:
        """Return the total cost of the charges, in the budget's type.

        Raises
        ------
        ValueError
            If the data set has no budget.
        """
        return spent_by_counts(self.costs(dataset, user), self._budget_for(dataset, user))

    def left(self, dataset: str, user: str) -> Guarantee:
        """Return the amount left of a user's or data set's budget.

        A user without a budget has that of the data set.

        Raises
        ------
        ValueError
            If the data set has no budget.
        """
        if user and self.budget(dataset, user) is None:
            user = ""
        return difference(self._budget_for(dataset, user), self.spent(dataset, user))

    def budgets(self) -> tuple[BudgetState, ...]:
        """Return the budgets in force, by data set, then user."""
        newest = "SELECT max(number) FROM entry WHERE kind = 'budget' GROUP BY dataset, user"
        rows = self._file.rows(
            "SELECT dataset, user, notion, first, second, note FROM entry "
            f"WHERE number IN ({newest}) ORDER BY dataset, user"
        )
        return tuple(
            self._state(dataset, user, from_columns(*columns), note)
            for dataset, user, *columns, note in rows
        )

    def _state(self, dataset: str, user: str, budget: Guarantee, note: str) -> BudgetState:
        spent = spent_by_counts(self.costs(dataset, user), budget)
        return BudgetState(dataset, user, budget, spent, difference(budget, spent), note)

    def entries(self) -> tuple[LedgerEntry, ...]:
        """Return all entries, oldest first."""
        rows = self._file.rows(
            "SELECT number, at, kind, dataset, user, notion, first, second, query, note, sha256, "
            "size, chain FROM entry ORDER BY number"
        )
        return tuple(
            LedgerEntry(number, at, kind, dataset, user, from_columns(*row[:3]), *row[3:])
            for number, at, kind, dataset, user, *row in rows
        )

    def budget(self, dataset: str, user: str) -> Guarantee | None:
        """Return the budget of a data set or user, or None."""
        rows = self._file.rows(
            "SELECT notion, first, second FROM entry WHERE kind = 'budget' AND dataset = ? "
            "AND user = ? ORDER BY number DESC LIMIT 1",
            (dataset, user),
        )
        return from_columns(*rows[0]) if rows else None

    def _budget_for(self, dataset: str, user: str) -> Guarantee:
        budget = self.budget(dataset, user) or self.budget(dataset, "")
        if budget is None:
            raise ValueError(f"expected a data set with a budget, got {dataset!r}; set a budget")
        return budget

    def _add_charge_entry(
        self, kind: EntryKind, terms: ChargeTerms, sha256: str = "", size: int = 0
    ) -> None:
        self._add_entry(
            kind,
            terms.dataset,
            terms.user,
            terms.cost,
            query=terms.query,
            note=terms.purpose,
            sha256=sha256,
            size=size,
        )

    def _add_entry(
        self,
        kind: EntryKind,
        dataset: str,
        user: str,
        guarantee: Guarantee,
        *,
        query: str = "",
        note: str = "",
        sha256: str = "",
        size: int = 0,
    ) -> None:
        columns = (*to_columns(guarantee), query, note, sha256, size)
        number, chain = last_entry(self._file)
        content = (number + 1, now(), kind, dataset, user, *columns)
        self._file.write(
            "INSERT INTO entry VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (*content, extend_chain(chain, content)),
        )


def now() -> str:
    """Return the time in UTC, as ISO 8601."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")
