"""Parties in worker processes, one process per party."""

import signal
import struct
import time
from multiprocessing import get_context
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any

from fedneighbors.federation._inprocess import Job, PartyConnection, ProcessEnded, ThreadPool
from fedneighbors.federation._links import Link
from fedneighbors.federation._reply_grid import delay_to_grid
from fedneighbors.federation._roles import Party, serve_safely, set_end

_SECONDS = struct.Struct("<d")
"""Format of the prefix of each message.

Before a request it is the monotonic time of the deadline, which all processes share. Before a reply
it is the seconds until the reply was sent, waits for a grid included.
"""


class ProcessConnection(PartyConnection):
    """Connection to one party in its own process."""

    def __init__(self, party: Party, link: Link | None, pool: ThreadPool | None) -> None:
        super().__init__(party, link, pool)
        self._process, self._pipe = _start_process(party)

    def wait_ready(self) -> None:
        """Wait until the party's process is ready or has ended."""
        try:
            self._pipe.recv_bytes()
        except (EOFError, OSError):
            return  # the process has ended: the first call of `_ask` raises

    def stop(self, *, at_once: bool) -> bool:
        """Kill the process if ``at_once`` or not idle; return True."""
        if at_once or not self.is_idle:
            self._process.kill()
        return True

    def close(self) -> None:
        """Close the connection and join the process."""
        self._pipe.close()
        self._process.join()

    def _ask(self, job: Job) -> tuple[bytes, float]:
        try:
            self._pipe.send_bytes(_SECONDS.pack(job.end) + job.frame)
            reply = self._pipe.recv_bytes()
        except (EOFError, OSError):
            raise ProcessEnded from None
        return reply[_SECONDS.size :], _SECONDS.unpack_from(reply)[0]


def _start_process(party: Party) -> "tuple[BaseProcess, Connection[Any, Any]]":
    context = get_context("spawn")  # a fork would copy locks that other threads hold
    pipe, party_pipe = context.Pipe()
    process = context.Process(target=_run_party, args=(party, party_pipe), daemon=True)
    try:
        process.start()
    except BaseException:
        pipe.close()
        raise
    finally:
        party_pipe.close()
    return process, pipe


def _run_party(party: Party, pipe: "Connection[Any, Any]") -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles interrupts
    try:
        pipe.send_bytes(b"ready")
        while True:
            request = pipe.recv_bytes()
            started = time.perf_counter()
            set_end(party, _SECONDS.unpack_from(request)[0])
            with delay_to_grid(getattr(party, "reply_grid_s", 0.0)):
                reply = serve_safely(party, request[_SECONDS.size :])
            pipe.send_bytes(_SECONDS.pack(time.perf_counter() - started) + reply)
    except (EOFError, OSError):
        return
