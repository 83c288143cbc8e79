"""Chain of digests over the entries of a ledger, and checks that the ledger matches it."""

import hashlib
import json
import re
from collections.abc import Sequence
from pathlib import Path

from fedneighbors.errors import LedgerError
from fedneighbors.privacy.ledger._file import LedgerFile

# Select a charge that only the entries or only the table of charges contain, if there is one.
_OTHER_CHARGES = """
WITH latest AS (
    SELECT query, dataset, user, notion, first, second, kind, max(number) FROM entry
    WHERE kind IN ('reserved', 'voided') GROUP BY query
), expected AS (
    SELECT query, dataset, user, notion, first, second FROM latest WHERE kind = 'reserved'
)
SELECT * FROM (SELECT * FROM expected EXCEPT SELECT * FROM charge)
UNION ALL SELECT * FROM (SELECT * FROM charge EXCEPT SELECT * FROM expected) LIMIT 1
"""
# Select an answer that only the entries or only the table of answers contain.
_OTHER_ANSWERS = """
WITH expected AS (SELECT query, sha256, size FROM entry WHERE kind = 'released'),
found AS (SELECT query, sha256, length(content) FROM answer)
SELECT * FROM (SELECT * FROM expected EXCEPT SELECT * FROM found)
UNION ALL SELECT * FROM (SELECT * FROM found EXCEPT SELECT * FROM expected) LIMIT 1
"""


def extend_chain(chain: str, content: Sequence[object]) -> str:
    """Return the digest of an entry and of all entries before it."""
    return hashlib.sha256(json.dumps([chain, *content]).encode("utf-8")).hexdigest()


def last_entry(file: LedgerFile) -> tuple[int, str]:
    """Return the last entry's number and digest, or 0 and ""."""
    rows = file.rows("SELECT number, chain FROM entry ORDER BY number DESC LIMIT 1")
    return rows[0] if rows else (0, "")


def check_chain(file: LedgerFile) -> None:
    """Raise if the ledger was altered by another program.

    Raises
    ------
    LedgerError
        With the first entry whose digest is wrong, or the table that differs from the entries.
    """
    number, chain = 0, ""
    for *content, stored in file.rows("SELECT * FROM entry ORDER BY number"):
        number, chain = number + 1, extend_chain(chain, content)
        if content[0] != number or stored != chain:
            raise _alteration_error(file, f"entry {number}")
    for name, statement in (("charge", _OTHER_CHARGES), ("answer", _OTHER_ANSWERS)):
        if file.rows(statement):
            raise _alteration_error(file, f"table {name}, which differs from the entries,")


def check_head(file: LedgerFile, head: str) -> None:
    """Raise unless the ledger continues from an earlier head.

    Raises
    ------
    LedgerError
        If the text is not a head, or the entry is missing or has another digest.
    """
    # 19 digits hold every 64-bit integer of SQLite
    match = re.fullmatch(r"(0):|([1-9]\d{0,18}):([0-9a-f]{64})", head.strip())
    if not match:
        raise LedgerError(f"expected the head of a ledger, such as 12:5f0c..., got {head[:80]!r}")
    number, chain = int(match[1] or match[2]), match[3]
    rows = file.rows("SELECT chain FROM entry WHERE number = ?", (number,))
    if number and rows != [(chain,)]:
        raise LedgerError(
            f"ledger {file.path} does not continue from its head: expected entry {number} with "
            f"digest {chain[:16]}..., the last entry is {last_entry(file)[0]}. If the file was "
            "restored from a backup, it does not know the releases after it: set budgets without "
            "their cost, then run fedneighbors ledger reconcile"
        )


def read_head(path: Path) -> str:
    """Return the head that a file contains.

    Raises
    ------
    LedgerError
        If the file cannot be read.
    """
    try:
        return path.read_text("ascii")
    except (OSError, UnicodeDecodeError) as error:
        raise LedgerError(f"the head {path} of a ledger cannot be read ({error})") from error


def _alteration_error(file: LedgerFile, part: str) -> LedgerError:
    return LedgerError(
        f"ledger {file.path}: {part} was altered after it was written; restore the file, with its "
        "-wal file, from a backup made after the last release"
    )
