"""A clock that only tests move: no test of this folder waits for a reply grid."""

import pytest

from fedneighbors.federation import _reply_grid


class Clock:
    """Clock in seconds; sleeping moves it."""

    def __init__(self):
        self.now = 1000.0
        self.slept = []

    def monotonic(self):
        return self.now

    def sleep(self, seconds):
        self.slept.append(seconds)
        self.now += seconds


@pytest.fixture(autouse=True)
def clock(monkeypatch):
    """Replace the clock of reply grids."""
    made = Clock()
    monkeypatch.setattr(_reply_grid, "time", made)
    return made
