"""Searches in a separate process, which is killed when a provider exceeds its time limit.

A range count cannot be interrupted, but a process can. Limits are whole CPU seconds.
"""

import resource
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from multiprocessing import get_context
from multiprocessing.connection import Connection
from typing import Any

from experiments.fedknn.measurement.trials import Trial
from fedneighbors.federation._messages import Message
from fedneighbors.federation._roles import Party


def replay_in_process(
    measure: Callable[[Sequence[Party]], Trial], parties: Sequence[Party], *, limit_s: float
) -> Trial | None:
    """Return the result of ``measure``, or None after the limit.

    The limit is that of the CPU time of each party.

    Parameters
    ----------
    measure : callable
        Function that runs a search with the given parties, which have the time limit.
    parties : sequence of Party
        The providers.
    limit_s : float
        CPU seconds of each party, in all exchanges.
    """
    context = get_context("fork")  # the child shares the providers' tables
    ours, theirs = context.Pipe(duplex=False)
    child = context.Process(target=_work, args=(measure, parties, limit_s, theirs))
    child.start()
    theirs.close()
    found: Trial | None = None
    with suppress(EOFError):
        found = Trial.from_bytes(ours.recv_bytes())
    child.join()
    ours.close()
    return found


def _work(
    measure: Callable[[Sequence[Party]], Trial],
    parties: Sequence[Party],
    limit_s: float,
    pipe: "Connection[Any, Any]",
) -> None:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    pipe.send_bytes(measure([_LimitedParty(party, limit_s) for party in parties]).to_bytes())


class _LimitedParty:
    """A party whose process is killed after a number of seconds."""

    def __init__(self, party: Party, limit_s: float) -> None:
        self.name = party.name
        self.accepts = party.accepts
        self._party = party
        self._left_s = limit_s

    def answer(self, request: Message) -> Message:
        start = time.process_time()
        _, most = resource.getrlimit(resource.RLIMIT_CPU)
        resource.setrlimit(resource.RLIMIT_CPU, (int(start + max(self._left_s, 0)) + 1, most))
        reply = self._party.answer(request)
        self._left_s -= time.process_time() - start
        return reply
