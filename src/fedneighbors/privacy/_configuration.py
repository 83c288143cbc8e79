"""Privacy as the configuration of a run, of a node and of the command line say it."""

import json
from collections.abc import Mapping
from typing import Any

from fedneighbors.privacy._policy import Privacy

_NUMBERS = ("epsilon", "delta", "constants-share")
_WORDS = ("mechanism", "neighbors", "accounting")
_COUNTS = ("n-picks", "n-parties", "colluders")


def privacy_from(config: Mapping[str, Any]) -> Privacy | None:
    """Return the privacy that a configuration describes, None where it sets no ``epsilon``.

    Parameters
    ----------
    config : mapping
        Keys as the arguments of :class:`~fedneighbors.privacy._policy.Privacy` with ``-`` for
        ``_``. Numbers may be text such as ``"1/3"``; ``public`` is text with commas,
        ``public-classes`` and ``bounds`` are JSON lists. An empty text, or 0 for ``n-picks`` and
        ``n-parties``, counts as absent.

    Raises
    ------
    ValueError, TypeError
        If a value is out of range or of another type.

    Examples
    --------
    >>> privacy_from({"epsilon": "1/2", "mechanism": "local", "public": "classes, n_rows"}).public
    ('classes', 'n_rows')
    """
    if config.get("epsilon", "") == "":
        return None
    given: dict[str, Any] = {
        key.replace("-", "_"): config[key]
        for key in (*_NUMBERS, *_WORDS, *_COUNTS)
        if config.get(key, "") != "" and not (key in ("n-picks", "n-parties") and config[key] == 0)
    }
    public = str(config.get("public", ""))
    given["public"] = tuple(word.strip() for word in public.split(",") if word.strip())
    classes, bounds = _listed(config, "public-classes"), _listed(config, "bounds")
    if classes:
        given["classes"] = tuple(classes)
    if bounds:
        if len(bounds) != 2:
            raise ValueError(f"expected bounds as a JSON list [low, high], got {bounds!r}")
        given["bounds"] = tuple(bounds)
    return Privacy(**given)


def _listed(config: Mapping[str, Any], key: str) -> list[Any]:
    text = config.get(key, "") or "[]"
    try:
        found = json.loads(text)
    except (json.JSONDecodeError, TypeError) as error:
        raise ValueError(f"expected {key} as a JSON list, got {text!r}") from error
    if not isinstance(found, list):
        raise ValueError(f"expected {key} as a JSON list, got {text!r}")
    return found
