"""Runtime in one machine: parties as threads or as worker processes."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from multiprocessing import get_context
from multiprocessing.connection import Connection
from typing import Any, Literal, TypeVar

from fedneighbors.federation.loop import Outcome, run_rounds
from fedneighbors.federation.roles import Coordinator, Party, serve
from fedneighbors.records import Round

__all__ = ["run"]

R = TypeVar("R")
_Link = Callable[[bytes], bytes]


def run(
    coordinator: Coordinator[R],
    parties: Sequence[Party],
    *,
    workers: Literal["threads", "processes"] = "threads",
    n_workers: int = 1,
    on_round: Callable[[Round], None] | None = None,
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

    Raises
    ------
    ValueError
        If there is no party or two have one name.
    PartyMissing, PartyRefused, WireError, ProtocolError
        As the coordinator and the loop decide.
    """
    names = [party.name for party in parties]
    if not names or len(set(names)) < len(names):
        raise ValueError(f"expected parties with different names, got {names}; rename or add one")
    connect = _in_threads if workers == "threads" else _in_processes
    with connect(parties) as links, ThreadPoolExecutor(max_workers=n_workers) as pool:

        def exchange(frames: Mapping[str, bytes]) -> tuple[dict[str, bytes], dict[str, str]]:
            waiting = {name: pool.submit(links[name], frame) for name, frame in frames.items()}
            answers: dict[str, bytes] = {}
            missing: dict[str, str] = {}
            for name, future in waiting.items():
                try:
                    answers[name] = future.result()
                except (EOFError, BrokenPipeError, ConnectionResetError):
                    missing[name] = "its process ended"
            return answers, missing

        return run_rounds(coordinator, exchange, tuple(names), on_round=on_round)


@contextmanager
def _in_threads(parties: Sequence[Party]) -> Iterator[dict[str, _Link]]:
    yield {party.name: lambda frame, party=party: serve(party, frame) for party in parties}  # type: ignore[misc]


@contextmanager
def _in_processes(parties: Sequence[Party]) -> Iterator[dict[str, _Link]]:
    context = get_context("spawn")
    links: dict[str, _Link] = {}
    ends: list[Connection[Any, Any]] = []
    processes = []
    try:
        for party in parties:
            ours, theirs = context.Pipe()
            process = context.Process(target=_work, args=(party, theirs), daemon=True)
            process.start()
            theirs.close()
            processes.append(process)
            ends.append(ours)
            links[party.name] = _talk(ours)
        yield links
    finally:
        for end in ends:
            end.close()
        for process in processes:
            process.join()


def _talk(end: "Connection[Any, Any]") -> _Link:
    def link(frame: bytes) -> bytes:
        end.send_bytes(frame)
        return end.recv_bytes()

    return link


def _work(party: Party, end: "Connection[Any, Any]") -> None:
    while True:
        try:
            frame = end.recv_bytes()
        except EOFError:
            return
        end.send_bytes(serve(party, frame))
