"""Numbers of the pictures in results: distances, rounds, maps and structures."""

import math
from base64 import b64encode
from collections.abc import Mapping, Sequence
from typing import Any

from fedneighbors._lazy import optional_module
from fedneighbors.errors import MissingExtraError

Json = dict[str, Any]
MAX_MARKS, MAX_STRUCTURES = 500, 50
"""Maximum number of objects in a picture, and of structures in a table."""

PREDICTED = "dann*"
"""Algorithm whose costs are predicted, as a measurement would be charged."""

_MAX_RINGS = 10
_ROOM = 6.0  # room for a rank, in units of a map that is 100 wide
_METRES_PER_DEGREE = 111_195.0  # along a meridian, on a sphere
_COLUMNS = (("longitude", "lon", "lng", "long"), ("latitude", "lat"))
_WORLD = (-180.0, 180.0, -90.0, 90.0)
_STEPS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 30.0, 60.0)


def place_distances(
    neighbors: Sequence[Mapping[str, Any]], providers: Sequence[str]
) -> Json | None:
    """Return the marks of distances in percent; None without distances."""
    found = [one for one in neighbors[:MAX_MARKS] if one["distance"] is not None]
    if not found:
        return None
    low, high = found[0]["distance"], found[-1]["distance"]
    width = high - low or 1.0
    lanes: dict[str, list[Json]] = {name: [] for name in providers}
    for rank, one in enumerate(found, start=1):
        position = 2 + 96 * (one["distance"] - low) / width
        lanes.setdefault(one["provider"], []).append({**one, "rank": rank, "x": round(position, 2)})
    return {"low": low, "high": high, "lanes": lanes}


def place_rounds(rounds: Sequence[Mapping[str, Any]], providers: Sequence[str]) -> Json | None:
    """Return the bars of rounds in percent; None without rounds."""
    total = sum(one["seconds"] for one in rounds)
    if not total:
        return None
    least = 2.0  # percent, so that each round is seen
    scale = (100 - least * len(rounds)) / total
    lanes: dict[str, list[Json]] = {name: [] for name in providers}
    start = 0.0
    for one in rounds:
        width = least + scale * one["seconds"]
        for name in (*one["answered"], *one["missing"]):
            bar = {"x": round(start, 2), "width": round(width - 0.4, 2)}
            lanes.setdefault(name, []).append({**one, **bar, "is_missing": name in one["missing"]})
        start += width
    return {"seconds": total, "lanes": lanes}


def place_costs(costs: Sequence[Mapping[str, Any]]) -> list[Json]:
    """Return the bars of algorithms and their parts in percent."""
    longest = max((one["total_s"] for one in costs), default=0.0) or 1.0
    found = []
    for one in costs:
        start, parts = 0.0, []
        for name in ("local", "link", "broker"):
            seconds = max(one[f"{name}_s"], 0.0)  # a prediction may be a difference below 0
            width = 100 * seconds / longest
            bar = {"x": round(start, 2), "width": round(width, 2)}
            parts.append({"name": name, "seconds": seconds, **bar})
            start += width
        found.append({**one, "is_predicted": one["algorithm"] == PREDICTED, "parts": parts})
    return found


def draw_map(
    place: tuple[float, float] | None,
    neighbors: Sequence[Mapping[str, Any]],
    radius: float | None = None,
    *,
    areas: Mapping[str, Sequence[float]] | None = None,
) -> Json:
    """Return a map of a query and neighbours, or of areas.

    Parameters
    ----------
    place : tuple of float, optional
        Longitude and latitude of the query.
    neighbors : sequence of mapping
        Neighbours. Those without a longitude and a latitude among their columns are drawn as
        circles around the query.
    radius : float, optional
        Metres of the search, which are drawn as a circle, too.
    areas : mapping of str to sequence of float, optional
        West, south, east and north end of the places of each provider. Without them, neighbours and
        a radius, the map is of the world.
    """
    boxes = {name: ((w, n), (e + 360 * (e < w), s)) for name, (w, s, e, n) in (areas or {}).items()}
    corners = [corner for box in boxes.values() for corner in box]
    longitudes, latitudes = zip(*(corners or [place or (0.0, 0.0)]), strict=True)
    center = (min(longitudes) + max(longitudes)) / 2, (min(latitudes) + max(latitudes)) / 2
    points, rings = _mark(neighbors, radius, center)
    west, east, south, north = _frame(center, [*corners, *[one["at"] for one in points]], rings)
    middle = math.cos(math.radians((south + north) / 2))
    scale = 100 / (east - west)  # units of the picture for a degree of longitude
    height = round((north - south) * scale / middle, 3)

    def locate(longitude: float, latitude: float) -> tuple[float, float]:
        return round((longitude - west) * scale, 3), round((north - latitude) * scale / middle, 3)

    step = next(one for one in _STEPS if (east - west) / one < 6.5)  # names fit
    for one in points:
        one["x"], one["y"] = locate(*one["at"])
    for one in rings:
        one["r"] = round(one["degrees"] * scale / middle, 3)
    return {
        "west": west, "east": east, "south": south, "north": north, "height": height,
        "columns": [(locate(x, 0)[0], _name(_wrap(x), "E", "W")) for x in _ticks(west, east, step)],
        "rows": [(locate(0, y)[1], _name(y, "N", "S")) for y in _ticks(south, north, step)],
        "here": place and locate(center[0] + _wrap(place[0] - center[0]), place[1]),
        "areas": {name: [locate(*corner) for corner in box] for name, box in boxes.items()},
        "points": points, "named": _choose_named(points, height),
        "rings": rings, "is_within": radius is not None,
        "extent": f"{_name(west, 'E', 'W')} to {_name(east, 'E', 'W')}, "
        f"{_name(south, 'N', 'S')} to {_name(north, 'N', 'S')}; a line every {step:g}°",
    }  # fmt: skip


def _mark(
    neighbors: Sequence[Mapping[str, Any]], radius: float | None, center: tuple[float, float]
) -> tuple[list[Json], list[Json]]:
    """Return the points and the circles of a map around a query."""
    points: list[Json] = []
    rings: list[Json] = []
    for rank, one in enumerate(neighbors[:MAX_MARKS], start=1):
        found = _find_place(one.get("payload", {}))
        if found is not None:
            longitude = center[0] + _wrap(found[0] - center[0])  # on the query's side
            points.append({**one, "rank": rank, "at": (longitude, found[1])})
        elif one["distance"] is not None and len(rings) < _MAX_RINGS:
            rings.append({**one, "rank": rank, "degrees": one["distance"] / _METRES_PER_DEGREE})
    if radius is not None:
        rings.append({"id": "radius", "distance": radius, "degrees": radius / _METRES_PER_DEGREE})
    return points, rings


def _choose_named(points: Sequence[Json], height: float) -> list[Json]:
    """Return the points whose ranks fit into a map, the nearest first."""
    named: list[Json] = []
    for one in points:
        is_inside = 2 * _ROOM < one["x"] < 100 - _ROOM and _ROOM < one["y"] < height - _ROOM
        gaps = [max(abs(one["x"] - other["x"]), abs(one["y"] - other["y"])) for other in named]
        if is_inside and min(gaps, default=_ROOM) >= _ROOM:
            named.append(one)
    return named


def _frame(
    center: tuple[float, float],
    points: Sequence[tuple[float, float]],
    rings: Sequence[Mapping[str, Any]],
) -> tuple[float, float, float, float]:
    """Return the borders of a map: west, east, south and north."""
    if not points and not rings:
        return _WORLD
    x, y = center
    middle = max(math.cos(math.radians(y)), 0.01)
    reach = max([one["degrees"] for one in rings], default=0.0)
    high = max(*[abs(point[1] - y) for point in points], reach, 0.005) * 1.15
    wide = max(*[abs(point[0] - x) for point in points], reach / middle, high / middle) * 1.05
    wide, high = min(wide, 180.0), max(min(high, 90.0), wide * middle / 2)
    return x - wide, x + wide, max(y - high, -90), min(y + high, 90)


def _ticks(low: float, high: float, step: float) -> list[float]:
    first = math.ceil(low / step)
    return [number * step for number in range(first, int(high // step) + 1)][:200]


def _name(degrees: float, positive: str, negative: str) -> str:
    return f"{abs(round(degrees, 2)):g}° {positive if degrees >= 0 else negative}"


def _wrap(degrees: float) -> float:
    return (degrees + 180) % 360 - 180


def _find_place(payload: Mapping[str, Any]) -> tuple[float, float] | None:
    """Return longitude and latitude among the columns of an object, or None."""
    cells = {name.lower(): cell for name, cell in payload.items()}
    found = [next((cells[n] for n in names if n in cells), None) for names in _COLUMNS]
    try:
        longitude, latitude = (float(one or "") for one in found)  # a CSV file has texts
    except ValueError:
        return None
    is_place = abs(longitude) <= 360 and abs(latitude) <= 90
    return (longitude, latitude) if is_place else None


def draw_structure(smiles: str) -> str | None:
    """Return a molecule as the data URI of an SVG.

    None without RDKit, or if it is no SMILES.
    """
    try:
        chem = optional_module("rdkit.Chem", "chem")
        drawing = optional_module("rdkit.Chem.Draw.rdMolDraw2D", "chem")
    except MissingExtraError:
        return None
    try:
        with optional_module("rdkit.rdBase", "chem").BlockLogs():  # they would contain the query
            molecule = chem.MolFromSmiles(smiles)
        if molecule is None:
            return None
        picture = drawing.MolDraw2DSVG(220, 150)
        drawing.PrepareAndDrawMolecule(picture, molecule)
    except (ValueError, RuntimeError):
        return None
    picture.FinishDrawing()
    return "data:image/svg+xml;base64," + b64encode(picture.GetDrawingText().encode()).decode()


def find_smiles(payload: Mapping[str, Any]) -> str | None:
    """Return the SMILES among the columns of an object, or None."""
    found = {name.lower(): cell for name, cell in payload.items()}.get("smiles")
    return found if isinstance(found, str) else None
