"""Emulated network links."""

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Link:
    """Network link emulated by sleeping; parties sleep concurrently.

    Parameters
    ----------
    delay_s : float
        Round trip in seconds, 0 or more: half before the party's work, half after it.
    bytes_per_s : float, optional
        Bandwidth in each direction; None for unlimited.

    Raises
    ------
    ValueError
        If the delay is negative or infinite, or the bandwidth is not positive.

    Examples
    --------
    >>> Link(0.064, bytes_per_s=1e6).one_way_s(8000)
    0.04
    """

    delay_s: float
    bytes_per_s: float | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.delay_s < math.inf:
            raise ValueError(f"expected delay_s of 0 or more seconds, got {self.delay_s!r}")
        if self.bytes_per_s is not None and not self.bytes_per_s > 0:
            raise ValueError(f"expected bytes_per_s above 0 or None, got {self.bytes_per_s!r}")

    def one_way_s(self, n_bytes: int) -> float:
        """Return the one-way travel time of a frame, in seconds."""
        sending_s = 0.0 if self.bytes_per_s is None else n_bytes / self.bytes_per_s
        return self.delay_s / 2 + sending_s

    def travel(self, frame: bytes) -> None:
        """Sleep for the one-way travel time of a frame."""
        if (seconds := self.one_way_s(len(frame))) > 0:
            time.sleep(seconds)


def resolve_links(link: Link | Mapping[str, Link], names: Sequence[str]) -> dict[str, Link]:
    """Return the links of parties by name.

    Raises
    ------
    ValueError
        If a link is given for a party that does not take part.
    """
    if isinstance(link, Link):
        return dict.fromkeys(names, link)
    if unknown := sorted(set(link) - set(names)):
        raise ValueError(f"links for {unknown}, which do not take part; the parties are {names}")
    return dict(link)
