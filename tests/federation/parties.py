"""Messages, parties and coordinators shared by the tests of this folder."""

import os
import signal
import threading
from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import numpy as np
import numpy.typing as npt

from fedneighbors.federation._loop import gather, total
from fedneighbors.federation._messages import message
from fedneighbors.federation._roles import Refused


@message
class Everything:
    nothing: None
    yes: bool
    number: int
    real: float
    text: str
    raw: bytes
    items: npt.NDArray[Any]
    pair: tuple[int, str]
    many: tuple[float | None, ...]
    table: Mapping[str, tuple[int, ...]]
    word: Literal["add", "replace"]


@message
class Integers:
    items: npt.NDArray[np.int64]


@message
class Nested:
    content: tuple[tuple[int, ...], ...] | Mapping[str, Mapping[str, int]] | int | None


@message
class ValidatedMessage:
    """Message whose validation raises ZeroDivisionError or IndexError for invalid values."""

    n: int
    parts: tuple[int, ...]

    def __post_init__(self) -> None:
        _ = 1 // self.n
        _ = self.parts[self.n]


@message
class CountReply:
    n_rows: int
    counts: npt.NDArray[np.int64]


@message
class CountRequest:
    reply: ClassVar[type] = CountReply
    n_bins: int


@message
class NameReply:
    name: str


@message
class NameRequest:
    reply: ClassVar[type] = NameReply
    greeting: str


class Counter:
    """Party that counts its values in bins, optionally with a fault."""

    accepts = (CountRequest, NameRequest)

    def __init__(self, name: str, values: tuple[int, ...], *, fault: str = "") -> None:
        self.name = name
        self._values = np.array(values, np.int64)
        self._fault = fault

    def answer(self, request: Any) -> Any:
        if isinstance(request, NameRequest):
            return NameReply(f"{request.greeting} {self.name}")
        self._misbehave()
        counts = np.bincount(self._values % request.n_bins, minlength=request.n_bins)
        return CountReply(len(self._values), counts)

    def _misbehave(self) -> None:
        match self._fault:
            case "refuse":
                raise Refused("a column is missing", "age")
            case "unprintable refusal":
                raise Refused("a\nb" * 100, "\x1b[31m" + "c" * 1000)
            case "fail":
                raise RuntimeError(
                    f"secret value {4700 + 11}"
                )  # the traceback must not contain 4711
            case "end of file":
                raise EOFError("the party's own file is short")
            case "die":
                os.kill(os.getpid(), signal.SIGKILL)
            case "interrupt":
                os.kill(os.getppid(), signal.SIGINT)
            case "block":
                threading.Event().wait()


class Impostor(Counter):
    """Party that answers every request with a message of the wrong type."""

    def answer(self, request: Any) -> Any:
        return NameReply(self.name)


def count(n_bins: int) -> Any:
    """Coordinate a run: request all names, then the sum of the counts."""
    names = yield gather(NameRequest("hello"))
    replies = yield total(CountRequest(n_bins))
    summed = replies.complete("the counts").total
    greetings = [reply.name for reply in names.complete("the names").each.values()]
    return greetings, summed.n_rows, summed.counts.tolist()
