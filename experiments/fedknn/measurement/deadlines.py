"""Searches in a separate process, which is killed when a provider exceeds its time limit.

A range count cannot be interrupted, but a process can. Limits are rounded up to CPU seconds.
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
    """Return the result of ``measure``; None if a party exceeds its limit.

    Parameters
    ----------
    measure : callable
        Runs a search with the given parties, whose CPU time is limited.
    parties : sequence of Party
        The providers.
    limit_s : float
        CPU seconds of each party, in all exchanges.
    """
    context = get_context("fork")  # the child shares the providers' tables
    receiver, sender = context.Pipe(duplex=False)
    child = context.Process(target=_work, args=(measure, parties, limit_s, sender))
    child.start()
    sender.close()
    trial: Trial | None = None
    with suppress(EOFError):
        trial = Trial.from_bytes(receiver.recv_bytes())
    child.join()
    receiver.close()
    return trial


def _work(
    measure: Callable[[Sequence[Party]], Trial],
    parties: Sequence[Party],
    limit_s: float,
    pipe: "Connection[Any, Any]",
) -> None:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    pipe.send_bytes(measure([_LimitedParty(party, limit_s) for party in parties]).to_bytes())


class _LimitedParty:
    """A party; exceeding its CPU seconds kills the process."""

    def __init__(self, party: Party, limit_s: float) -> None:
        self.name = party.name
        self.accepts = party.accepts
        self._party = party
        self._remaining_s = limit_s

    def answer(self, request: Message) -> Message:
        start = time.process_time()
        _, hard_limit = resource.getrlimit(resource.RLIMIT_CPU)
        limit = int(start + max(self._remaining_s, 0)) + 1
        resource.setrlimit(resource.RLIMIT_CPU, (limit, hard_limit))
        reply = self._party.answer(request)
        self._remaining_s -= time.process_time() - start
        return reply
