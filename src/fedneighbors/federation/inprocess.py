"""Runtime in one machine: parties as threads or as worker processes."""

import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from multiprocessing import get_context
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from fedneighbors.federation.loop import Outcome, run_rounds
from fedneighbors.federation.roles import Coordinator, Party, serve, serve_apart
from fedneighbors.records import Round

if TYPE_CHECKING:
    from fedneighbors.federation.maskedsums import MaskedSums  # which needs an extra

__all__ = ["run"]

R = TypeVar("R")
_Link = Callable[[bytes], bytes]


class _Ended(Exception):  # noqa: N818 - says what became of the process
    """The process of a party is gone."""


def run(
    coordinator: Coordinator[R],
    parties: Sequence[Party],
    *,
    workers: Literal["threads", "processes"] = "threads",
    n_workers: int = 1,
    on_round: Callable[[Round], None] | None = None,
    sums: Literal["plain", "masked"] = "plain",
    threshold: int | None = None,
) -> Outcome[R]:
    """Run a federation on this machine and return the coordinator's result.

    Requests and replies pass through their canonical bytes exactly as on a network.

    Parameters
    ----------
    coordinator : generator
        The coordinator.
    parties : sequence of Party
        Names must differ.
    workers : {"threads", "processes"}
        Where parties answer. Under ``"processes"`` each party lives in a process of its own.
    n_workers : int
        How many parties answer at the same time.
    on_round : callable, optional
        Called with each round's record.
    sums : {"plain", "masked"}
        ``"masked"`` forms sums by secure aggregation, each party with a key made for this run.
    threshold : int, optional
        Least number of parties in a masked sum, see
        :class:`~fedneighbors.federation.maskedsums.MaskedSums`.

    Raises
    ------
    ValueError
        If there is no party, two have one name, or an argument is out of range.
    AggregationError
        If a masked sum cannot be formed.
    MissingExtraError
        If sums are to be masked and the extra ``privacy`` is not installed.
    PartyMissing, PartyRefused, WireError, ProtocolError
        As the coordinator and the loop decide.
    Exception
        Any other exception of a party under ``"threads"``, with a note that names the party.
        Under ``"processes"`` it is a :class:`~fedneighbors.errors.PartyRefused` that tells its
        type alone.
    """
    names = [party.name for party in parties]
    if not names or len(set(names)) < len(names):
        raise ValueError(f"expected parties with different names, got {names}; rename or add one")
    if workers not in ("threads", "processes"):
        raise ValueError(f"expected workers 'threads' or 'processes', got {workers!r}")
    if n_workers < 1:
        raise ValueError(f"expected n_workers of at least 1, got {n_workers}")
    if sums not in ("plain", "masked"):
        raise ValueError(f"expected sums 'plain' or 'masked', got {sums!r}")
    if threshold is not None and sums == "plain":
        raise ValueError("a threshold belongs to masked sums; say sums='masked' or leave it out")
    asked, masked = (parties, None) if sums == "plain" else _enrolled(parties, threshold)
    connect = _in_threads if workers == "threads" else _in_processes
    # The links close first: a worker that is ended lets go of the thread that waits for it.
    with ThreadPoolExecutor(max_workers=n_workers) as pool, connect(asked) as links:
        exchange = partial(_exchange, pool, links)
        return run_rounds(coordinator, exchange, tuple(names), on_round=on_round, sums=masked)


def _enrolled(
    parties: Sequence[Party], threshold: int | None
) -> "tuple[Sequence[Party], MaskedSums]":
    """Return the parties behind masks, with fresh keys that all of them know."""
    from fedneighbors.federation.maskedparty import MaskedParty
    from fedneighbors.federation.maskedsums import MaskedSums
    from fedneighbors.federation.maskstore import MemoryStore
    from fedneighbors.privacy.secagg.identity import Identity, Roster

    keys = {party.name: Identity.new() for party in parties}
    roster = Roster({name: key.public for name, key in keys.items()})
    masked = [
        MaskedParty(party, identity=keys[party.name], roster=roster, store=MemoryStore())
        for party in parties
    ]
    return masked, MaskedSums(roster, threshold=threshold)


def _exchange(
    pool: ThreadPoolExecutor, links: Mapping[str, _Link], frames: Mapping[str, bytes]
) -> tuple[dict[str, bytes], dict[str, str]]:
    waiting = {name: pool.submit(links[name], frame) for name, frame in frames.items()}
    answers: dict[str, bytes] = {}
    missing: dict[str, str] = {}
    try:
        for name, future in waiting.items():
            try:
                answers[name] = future.result()
            except _Ended:
                missing[name] = "its process ended"
    finally:
        for future in waiting.values():
            future.cancel()  # after an error nobody waits for the parties that have not begun
    return answers, missing


@contextmanager
def _in_threads(parties: Sequence[Party]) -> Iterator[dict[str, _Link]]:
    yield {party.name: partial(_serve_here, party) for party in parties}


def _serve_here(party: Party, frame: bytes) -> bytes:
    try:
        return serve(party, frame)
    except Exception as error:
        error.add_note(f"raised by party {party.name!r}")
        raise


@contextmanager
def _in_processes(parties: Sequence[Party]) -> Iterator[dict[str, _Link]]:
    workers: list[tuple[BaseProcess, Connection[Any, Any]]] = []
    try:
        links: dict[str, _Link] = {}
        for party in parties:
            workers.append(_start(party))
            links[party.name] = partial(_talk, workers[-1][1])
        yield links
    except BaseException:
        for process, _ in workers:
            process.kill()  # it may be at work on an answer that nobody will read
        raise
    else:
        for _, end in workers:
            end.close()
    finally:
        for process, _ in workers:
            process.join()


def _start(party: Party) -> "tuple[BaseProcess, Connection[Any, Any]]":
    context = get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_work, args=(party, theirs), daemon=True)
    try:
        process.start()
    except BaseException:
        ours.close()
        raise
    finally:
        theirs.close()
    return process, ours


def _talk(end: "Connection[Any, Any]", frame: bytes) -> bytes:
    try:
        end.send_bytes(frame)
        return end.recv_bytes()
    except (EOFError, OSError):
        raise _Ended from None


def _work(party: Party, end: "Connection[Any, Any]") -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # an interrupt is the parent's to handle
    while True:
        try:
            frame = end.recv_bytes()
            end.send_bytes(serve_apart(party, frame))
        except (EOFError, OSError):
            return
