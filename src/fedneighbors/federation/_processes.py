"""Parties in worker processes, each with a process of its own."""

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
"""Format of a party's seconds of work, which its process sends before each reply."""


class ProcessLine(Line):
    """The way to one party that lives in a process of its own."""

    def __init__(self, party: Party, link: Link, threads: Threads) -> None:
        super().__init__(party, link, threads)
        self._process, self._end = _start(party)

    def ready(self) -> None:
        """Wait until the party's process is ready or has ended."""
        try:
            self._end.recv_bytes()
        except (EOFError, OSError):
            return  # the first frame will tell

    def stop(self, *, at_once: bool) -> bool:
        """Kill the process if it computes an unneeded answer."""
        if at_once or not self.idle:
            self._process.kill()
        return True

    def leave(self) -> None:
        """Let the process end."""
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
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # an interrupt is the parent's to handle
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
