"""What a ledger writes down: entries, budgets, the terms of a release, guarantees as columns."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import Literal

from fedneighbors.errors import LedgerError
from fedneighbors.privacy._guarantees import ZCDP, ApproxDP, Guarantee, PureDP

EntryKind = Literal["budget", "reserved", "released", "voided"]
"""What happened: a budget was set, a charge made, an answer stored, a charge taken back."""

Columns = tuple[str, str, str]
"""A guarantee in the file: notion, first and second number as exact fractions."""

_LONGEST_NAME = 500  # characters
_LONGEST_NOTE = 2000  # characters
_LONGEST_NUMBER = 1000  # digits; Python prints integers of up to 4300
_TOO_LARGE = 10**_LONGEST_NUMBER


@dataclass(frozen=True)
class Terms:
    """Under which terms an answer is asked for; a repeated id must repeat them.

    Parameters
    ----------
    query : str
        Id of the release.
    dataset : str
        Which data set is asked.
    user : str
        Who gets the answer.
    cost : Guarantee
        What it costs.
    purpose : str
        What it is for, for people; may differ when the id is repeated.

    Raises
    ------
    ValueError
        If a name is empty, too long or holds control characters, or the cost has too many digits.
    TypeError
        If a name is no text or the cost no guarantee.
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
        check_text(self.purpose, "purpose", _LONGEST_NOTE)
        to_columns(self.cost)


@dataclass(frozen=True)
class Entry:
    """One line of a ledger; lines are only ever added.

    Parameters
    ----------
    number : int
        Position in the ledger, ascending.
    at : str
        When, in UTC, as ISO 8601.
    kind : {"budget", "reserved", "released", "voided"}
        What happened.
    dataset, user : str
        Whose budget; the user is empty in a budget for the whole data set.
    guarantee : Guarantee
        The budget, or the cost of the release.
    query : str
        Id of the release; empty in a budget.
    note : str
        Purpose of a release, or remark on a budget.
    sha256 : str
        Digest of the answer in hex, where one was stored.
    size : int
        Bytes of the answer, where one was stored.
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


@dataclass(frozen=True)
class BudgetState:
    """A budget in force, with what is spent and left of it.

    Parameters
    ----------
    dataset, user : str
        Whose budget; the user is empty for the whole data set.
    allowed, spent, left : Guarantee
        Of one type.
    note : str
        Remark of whoever set it.
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
        If it is no guarantee.
    ValueError
        If a number has too many digits.

    Examples
    --------
    >>> to_columns(PureDP("0.5"))
    ('pure', '1/2', '')
    """
    if isinstance(guarantee, PureDP):
        return "pure", _to_text(guarantee.epsilon), ""
    if isinstance(guarantee, ApproxDP):
        return "approx", _to_text(guarantee.epsilon), _to_text(guarantee.delta)
    if isinstance(guarantee, ZCDP):
        return "zcdp", _to_text(guarantee.rho), ""
    raise TypeError(f"expected a PureDP, ApproxDP or ZCDP, got {guarantee!r}")


@lru_cache(maxsize=256)
def from_columns(notion: str, first: str, second: str) -> Guarantee:
    """Return the guarantee that :func:`to_columns` wrote.

    Raises
    ------
    LedgerError
        If the text is not of that form: the ledger was written by another hand.
    """
    try:
        if notion == "approx":
            return ApproxDP(Fraction(first), Fraction(second))
        if notion == "zcdp":
            return ZCDP(Fraction(first))
        if notion == "pure":
            return PureDP(Fraction(first))
        raise ValueError(f"unknown notion {notion}")
    except (ValueError, ZeroDivisionError) as error:
        raise LedgerError(
            f"the ledger holds a guarantee that cannot be read: {notion} {first} {second}; "
            "restore it from a copy"
        ) from error


def count_costs(rows: Iterable[tuple[str, str, str, int]]) -> Counter[Guarantee]:
    """Return how many releases of each cost there are, from rows of columns and a number."""
    return Counter({from_columns(*columns): number for *columns, number in rows})


def check_name(name: str, what: str) -> None:
    """Refuse a name that is empty, too long or cannot be printed.

    Raises
    ------
    TypeError, ValueError
        If it is not usable; the message names ``what``.
    """
    check_text(name, what, _LONGEST_NAME)
    if not name:
        raise ValueError(f"expected a {what}, got an empty text; name it")


def check_text(text: str, what: str, longest: int = _LONGEST_NOTE) -> None:
    """Refuse a text that is too long or holds characters that cannot be printed.

    Raises
    ------
    TypeError, ValueError
        If it is not usable; the message names ``what``.
    """
    if not isinstance(text, str):
        raise TypeError(f"expected {what} as text, got {type(text).__name__}")
    if len(text) > longest or not text.isprintable():
        raise ValueError(
            f"expected {what} of at most {longest} printable characters, got {text[:40]!r} "
            f"({len(text)} characters)"
        )


def _to_text(number: Fraction) -> str:
    if max(number.numerator, number.denominator) >= _TOO_LARGE:
        raise ValueError(f"expected a fraction of at most {_LONGEST_NUMBER} digits; round it up")
    return f"{number.numerator}/{number.denominator}"
