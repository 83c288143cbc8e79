"""Choice of the algorithm of a query: samples, measured costs, replays, plans."""

from fedneighbors._lazy import lazy_names

_HOMES = {
    "CANDIDATES": f"{__name__}._plan",
    "Costs": f"{__name__}._costs",
    "LinkCost": f"{__name__}._costs",
    "Plan": f"{__name__}._plan",
    "Prediction": f"{__name__}._plan",
    "make_plan": f"{__name__}._plan",
    "measure": f"{__name__}._costs",
    "star_candidate": f"{__name__}._plan",
}

__all__ = [*_HOMES]

__getattr__, __dir__ = lazy_names(__name__, _HOMES)
