"""Parties in worker processes, one process per party."""

import signal
import struct
import time
from functools import partial
from multiprocessing import get_context
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any

from fedneighbors.federation._inprocess import Ended, Line, Link, Threads
from fedneighbors.federation._roles import Party, serve_apart

_CLOCK = struct.Struct("<d")
"""Format of the seconds that a party worked, sent by its process before each reply."""


class ProcessLine(Line):
    """Connection to one party in its own process."""

    def __init__(self, party: Party, link: Link, threads: Threads) -> None:
        super().__init__(party, link, threads)
        self._process, self._end = _start(party)

    def ready(self) -> None:
        """Wait until the party's process is ready or has ended."""
        try:
            self._end.recv_bytes()
        except (EOFError, OSError):
            return  # sending the first frame raises the error

    def stop(self, *, at_once: bool) -> bool:
        """Kill the process if its pending answer is no longer needed."""
        if at_once or not self.idle:
            self._process.kill()
        return True

    def leave(self) -> None:
        """Close the connection and join the process."""
        self._end.close()
        self._process.join()

    def _ask(self, frame: bytes) -> tuple[bytes, float]:
        try:
            self._end.send_bytes(frame)
            reply = self._end.recv_bytes()
        except (EOFError, OSError):
            raise Ended from None
        return reply[_CLOCK.size :], _CLOCK.unpack_from(reply)[0]


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


def _work(party: Party, end: "Connection[Any, Any]") -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles interrupts
    answer = partial(serve_apart, party)
    try:
        end.send_bytes(b"ready")
        while True:
            frame = end.recv_bytes()
            started = time.perf_counter()
            reply = answer(frame)
            end.send_bytes(_CLOCK.pack(time.perf_counter() - started) + reply)
    except (EOFError, OSError):
        return
