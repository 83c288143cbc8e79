"""A broker with collections of all metrics, whose console tests visit."""

from contextlib import contextmanager

from tests.service.deployment import deployed, offered

SECTIONS = {"points": {"metric": "euclidean", "providers": ["north", "south"]}}


@contextmanager
def running_console(folder):
    """Run a broker and the providers north and south during the block."""
    import numpy as np

    with deployed(folder, SECTIONS) as running:
        for provider in ("north", "south"):
            points = np.arange(12.0).reshape(6, 2)
            running.start(provider, {"points": offered(provider, "points", "euclidean", points)})
        running.wait("north", "south")
        yield running
