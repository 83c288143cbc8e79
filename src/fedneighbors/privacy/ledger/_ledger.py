"""The ledger of one party: every release is charged durably before its noise is drawn."""

import logging
import secrets
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from types import TracebackType
from typing import Self

from fedneighbors.errors import LedgerError
from fedneighbors.privacy._accounting import spent_by_counts
from fedneighbors.privacy._guarantees import ZCDP, Guarantee
from fedneighbors.privacy.ledger._chain import check_chain, check_head, last_entry, read_head
from fedneighbors.privacy.ledger._file import LedgerFile
from fedneighbors.privacy.ledger._tables import (
    MAX_NAME_LENGTH,
    BudgetState,
    ChargeTerms,
    LedgerEntry,
    LedgerTables,
    check_name,
    check_text,
    now,
)
from fedneighbors.records import replace_file

log = logging.getLogger(__name__)

MAX_ANSWER_BYTES = 64 * 2**20
"""Largest answer that a ledger stores: 64 MiB, or eight million counts of 8 bytes. SQLite holds an
answer in memory and in its log while writing it, and the ledger never deletes one."""

_HELD = "restored from a backup; releases after it are unknown, so that all counts as spent"


class Ledger:
    """Budgets, charges and noisy answers of one party, in one SQLite file.

    Several processes and threads can open one file, and threads can share a ledger.

    Parameters
    ----------
    path : path or ":memory:"
        The file. Created if it is missing and a party is named. An empty file is refused: it may be
        a ledger whose charges were lost. ``":memory:"`` is for tests and simulations.
    party : str, optional
        Owner of the ledger. None opens an existing one of any owner.
    must_exist : bool
        Raise instead of creating a new ledger.
    timeout_s : float
        Seconds to wait for another writing process; a commit takes milliseconds.
    head : path, optional
        File with the number and digest of the last entry, written after every commit. Keep it on
        another disk: a ledger that was rolled back, for example restored from an old backup, does
        not continue from it and is refused. Created if missing.

    Raises
    ------
    LedgerError
        If the file is missing, empty, locked, truncated, foreign, of another version or party,
        readable by other users, altered, or does not continue from its head.

    Notes
    -----
    Each entry contains a digest of all entries before it, and charges and answers are compared with
    the entries on opening. The digests have no key: someone who may write the file can compute all
    of them again, which only a head on another disk reveals.

    Examples
    --------
    >>> from fedneighbors.privacy import PureDP
    >>> with Ledger(":memory:", party="north") as ledger:
    ...     ledger.set_budget("visits", PureDP(1))
    ...     terms = {"dataset": "visits", "user": "study", "cost": PureDP("0.25")}
    ...     first = ledger.release("q1", draw=lambda: b"noised", **terms)
    ...     again = ledger.release("q1", draw=lambda: b"other noise", **terms)
    ...     print(first, again, ledger.left("visits"))
    b'noised' b'noised' epsilon=3/4
    """

    def __init__(
        self,
        path: str | Path,
        party: str | None = None,
        *,
        must_exist: bool = False,
        timeout_s: float = 30.0,
        head: str | Path | None = None,
    ) -> None:
        if party is not None:
            check_name(party, "party")
        self._file = LedgerFile(path, party, timeout_s=timeout_s, must_exist=must_exist, time=now())
        self._tables = LedgerTables(self._file)
        self._to_void: dict[str, ChargeTerms] = {}
        self._head = None if head is None else Path(head)
        try:
            check_chain(self._file)
            if self._head is not None and self._head.exists():
                check_head(self._file, read_head(self._head))
        except BaseException:
            self._file.close()
            raise
        self._write_head()

    @property
    def party(self) -> str:
        """Return the name of the ledger's owner."""
        return self._file.party

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the file; no effect if already closed."""
        self._void_failed()
        self._file.close()

    def set_budget(
        self, dataset: str, budget: Guarantee, *, user: str = "", note: str = ""
    ) -> None:
        """Set the budget of a data set or user.

        It replaces the earlier one, which stays in the ledger as an entry. Earlier charges count
        against the new budget. If they exceed it, every charge is refused.

        Parameters
        ----------
        dataset : str
            Name of the data set.
        budget : Guarantee
            Limit on the total cost of all releases.
        user : str
            User whose releases are limited, in addition to the budget of the data set. Empty for
            the budget of the data set.
        note : str
            Reason, for people.

        Raises
        ------
        ValueError, TypeError
            If an argument is invalid, or the cost of an earlier release cannot be expressed in this
            budget's type.
        LedgerError
            If the ledger cannot be written.
        """
        check_name(dataset, "dataset")
        check_text(user, "user", MAX_NAME_LENGTH)
        check_text(note, "note")
        spent_by_counts(self._tables.costs(dataset, user), budget)
        with self._transaction():
            spent_by_counts(self._tables.costs(dataset, user), budget)
            self._tables.add_budget(dataset, user, budget, note)

    def hold(self) -> None:
        """Set all budgets to zero, because releases after a backup are unknown.

        Stored answers are still returned. :meth:`end_hold` ends it.
        """
        self._set_to_zero(self.budgets(), _HELD)

    def end_hold(self) -> None:
        """Accept new budgets; those that were held stay zero before."""
        held = [state for state in self.budgets() if state.note == _HELD]
        self._set_to_zero(held, "reconciled")

    @property
    def is_held(self) -> bool:
        """Return whether :meth:`hold` was called, and :meth:`end_hold` was not."""
        return any(state.note == _HELD for state in self.budgets())

    def _set_to_zero(self, states: Iterable[BudgetState], note: str) -> None:
        for state in states:
            allowed, none = state.allowed, Fraction(0)
            zero = ZCDP(none) if isinstance(allowed, ZCDP) else replace(allowed, epsilon=none)
            self.set_budget(state.dataset, zero, user=state.user, note=note)

    def release(
        self,
        query_id: str,
        *,
        dataset: str,
        user: str,
        cost: Guarantee,
        draw: Callable[[], bytes],
        purpose: str = "",
    ) -> bytes:
        """Return the noisy answer of an id; charge it if new.

        The charge is on disk before ``draw`` is called, and the answer is on disk before it is
        returned. After a crash in between, the same id is answered without a further charge.

        Parameters
        ----------
        query_id : str
            Id of the release. A repeated id returns the stored answer, at no cost.
        dataset, user : str
            Data set and recipient of the answer.
        cost : Guarantee
            Cost of this release.
        draw : callable
            Returns the noisy answer, at most ``MAX_ANSWER_BYTES``, and releases nothing else. If it
            raises, the charge stands, since the failure may depend on the rows: run all checks
            before the release. The same id can be requested again at no further cost; ``draw`` is
            then called again.
        purpose : str
            Description for people.

        Returns
        -------
        bytes
            The stored answer: the result of ``draw``, or an earlier one.

        Raises
        ------
        BudgetExceeded
            If the budget of the data set or of the user is too small; nothing is changed.
        ValueError, TypeError
            If an argument is invalid, the id was charged under other terms, or ``draw`` returns an
            invalid answer.
        LedgerError
            If the ledger cannot be read or written; nothing is released.
        """
        terms = ChargeTerms(query_id, dataset, user, cost, purpose)
        return self.release_all([terms], lambda _: [draw()])[0]

    def release_all(
        self,
        terms: Sequence[ChargeTerms],
        draw: Callable[[tuple[ChargeTerms, ...]], Sequence[bytes]],
    ) -> list[bytes]:
        """Return the noisy answers of several ids; charge new ids.

        All new ids are charged, or none if they exceed a budget. Otherwise it is equivalent to
        several calls of :meth:`release`, with two commits in total.

        Parameters
        ----------
        terms : sequence of ChargeTerms
            Requested releases, with unique ids.
        draw : callable
            Takes the terms of the releases without a stored answer; returns their noisy answers.

        Raises
        ------
        BudgetExceeded
            If a budget would be exceeded; nothing is changed.
        ValueError, TypeError
            If an id is repeated or was charged under other terms, or ``draw`` returns invalid
            answers.
        LedgerError
            If the ledger cannot be read or written; nothing is released.
        """
        if len({charge.query for charge in terms}) < len(terms):
            raise ValueError("expected unique ids; request each id once, and reuse its answer")
        self._void_failed()
        while True:
            answers = self._reserve(terms)
            missing = tuple(charge for charge in terms if charge.query not in answers)
            if missing:
                answers |= self._store(missing, _check_answers(draw(missing), len(missing)))
            if len(answers) == len(terms):
                return [answers[charge.query] for charge in terms]
            log.info(
                "release %s: a charge was voided by another process, charging again", terms[0].query
            )

    def epoch(self, dataset: str, content: bytes) -> str:
        """Return the random id of a data set's content; draw it once.

        The id is stored under a keyed digest of the content: it is the same after a restart, and
        reveals nothing about the content, even to those who can guess it. Neither the key nor the
        digest leaves the ledger.

        Parameters
        ----------
        dataset : str
            Name of the data set.
        content : bytes
            The content or a digest of it.

        Returns
        -------
        str
            32 hexadecimal digits.

        Raises
        ------
        LedgerError
            If the ledger cannot be read or written.
        """
        digest = self._tables.data_digest(dataset, content)
        found = self._tables.find_epoch(digest)
        if found is None:
            with self._file.transaction():  # adds no entry, so the head stays
                self._tables.add_epoch(digest, secrets.token_hex(16))
                found = self._tables.find_epoch(digest)  # that of another process, if it was first
        return str(found)

    def users_of(self, query_ids: Iterable[str]) -> dict[str, str]:
        """Return the user of each charged id, by id.

        Ids without a charge are omitted.

        Raises
        ------
        LedgerError
            If the ledger cannot be read.
        """
        return self._tables.users_of(tuple(query_ids))

    def budget(self, dataset: str, user: str = "") -> Guarantee | None:
        """Return the budget of a data set or user, or None."""
        return self._tables.budget(dataset, user)

    def spent(self, dataset: str, user: str = "") -> Guarantee:
        """Return the total cost of a data set's or user's releases.

        It has the type of the budget. Charges without an answer are included.

        Raises
        ------
        ValueError
            If the data set has no budget.
        """
        return self._tables.spent(dataset, user)

    def left(self, dataset: str, user: str = "") -> Guarantee:
        """Return the amount left of a data set's or user's budget.

        For a user without a budget, it is that of the data set. One more release of this cost fits
        the budget; under an (epsilon, delta) budget, zCDP releases of a higher cost may fit too. A
        charge must fit the budgets of both, the data set and the user.

        Raises
        ------
        ValueError
            If the data set has no budget.
        """
        return self._tables.left(dataset, user)

    def budgets(self) -> tuple[BudgetState, ...]:
        """Return the budgets in force, by data set, then user."""
        return self._tables.budgets()

    def entries(self) -> tuple[LedgerEntry, ...]:
        """Return all entries, oldest first.

        They contain the digest and size of answers, not the answers.
        """
        return self._tables.entries()

    def head(self) -> str:
        """Return the number and digest of the last entry, as ``number:digest``."""
        number, chain = last_entry(self._file)
        return f"{number}:{chain}"

    def check_head(self, head: str) -> None:
        """Raise unless the ledger continues from an earlier head.

        Parameters
        ----------
        head : str
            Earlier result of :meth:`head`.

        Raises
        ------
        LedgerError
            If it is not a head, or the ledger was rolled back or rewritten since then.
        """
        check_head(self._file, head)

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        """Commit the writes of the block, then write the new head."""
        with self._file.transaction():
            yield
        self._write_head()

    def _write_head(self) -> None:
        if self._head is None:
            return
        try:
            replace_file(self._head, self.head().encode("ascii"))
        except OSError as error:
            raise LedgerError(
                f"the head {self._head} of ledger {self._file.path} cannot be written ({error}); "
                "make its folder writable"
            ) from error

    def _reserve(self, terms: Sequence[ChargeTerms]) -> dict[str, bytes]:
        """Charge ids without a charge; return the stored answers by id."""
        states = [self._tables.find(charge) for charge in terms]
        if all(is_charged for is_charged, _ in states):
            return _answers_by_id(terms, states)
        for charge, (is_charged, _) in zip(terms, states, strict=True):
            if not is_charged:
                # A first check without the lock, so that refused requests do not block others.
                self._tables.check_budgets(charge)
        with self._transaction():
            states = [self._tables.find(charge) for charge in terms]
            for charge, (is_charged, _) in zip(terms, states, strict=True):
                if not is_charged:
                    self._tables.check_budgets(charge)
                    self._tables.add_charge(charge)
        return _answers_by_id(terms, states)

    def _store(self, terms: Sequence[ChargeTerms], answers: Sequence[bytes]) -> dict[str, bytes]:
        """Store answers; return the stored answers by id.

        An answer stored by another process is kept; an id whose charge was voided has none.
        """
        try:
            with self._transaction():
                states = [self._tables.find(charge) for charge in terms]
                for i, (charge, answer) in enumerate(zip(terms, answers, strict=True)):
                    if states[i] == (True, None):
                        self._tables.add_answer(charge, answer)
                        states[i] = True, answer
        except BaseException:
            self._void_or_defer(terms)
            raise
        return _answers_by_id(terms, states)

    def _void(self, terms: ChargeTerms) -> None:
        """Void a charge unless an answer is stored.

        A stored answer may have been released.
        """
        with self._transaction():
            try:
                is_charged, answer = self._tables.find(terms)
            except ValueError:  # another process charged the id again, under other terms
                return
            if is_charged and answer is None:
                self._tables.void_charge(terms)

    def _void_or_defer(self, terms: Sequence[ChargeTerms]) -> None:
        self._to_void |= {charge.query: charge for charge in terms}
        self._void_failed()

    def _void_failed(self) -> None:
        """Void the charges whose answers could not be stored.

        Charges that cannot be voided stay in ``_to_void`` for the next call.
        """
        for query, terms in list(self._to_void.items()):
            try:
                self._void(terms)
            except LedgerError:
                try:
                    self._file.reuse_log()  # the log cannot grow on a full disk
                    self._void(terms)
                except LedgerError as error:
                    log.warning("query %s stays charged for now: %s", query, error)
                    return
            self._to_void.pop(query, None)


def _answers_by_id(
    terms: Sequence[ChargeTerms], states: Sequence[tuple[bool, bytes | None]]
) -> dict[str, bytes]:
    return {
        charge.query: answer
        for charge, (_, answer) in zip(terms, states, strict=True)
        if answer is not None
    }


def _check_answers(answers: Sequence[bytes], n: int) -> Sequence[bytes]:
    if len(answers) != n:
        raise ValueError(f"expected draw to return {n} answers, got {len(answers)}")
    for answer in answers:
        _check_answer(answer)
    return answers


def _check_answer(answer: bytes) -> None:
    if not isinstance(answer, bytes):
        raise TypeError(f"expected draw to return bytes, got {type(answer).__name__}")
    if len(answer) > MAX_ANSWER_BYTES:
        raise ValueError(
            f"expected an answer of at most {MAX_ANSWER_BYTES} bytes, got {len(answer)}; release "
            "it in parts"
        )
