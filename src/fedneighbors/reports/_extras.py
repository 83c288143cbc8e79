"""Whether the packages that draw a report are there."""

from importlib.util import find_spec

from fedneighbors.errors import MissingExtraError


def require_drawing() -> None:
    """Return if a report can be drawn.

    Raises
    ------
    MissingExtraError
        If matplotlib or jinja2 is not installed; names the extra that brings them.
    """
    for package in ("matplotlib", "jinja2"):
        if find_spec(package) is None:
            raise MissingExtraError(package, "report")
