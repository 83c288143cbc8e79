"""A record with a figure of every kind."""

from fedneighbors.records import FIGURE_KINDS, Figure, ResultTable, Round, RunRecord, encode_pixels

ROWS = tuple(
    (n, 0.5 + 0.1 * n * (1 if method == "FlyNN" else 0.5), method, site, 0.02, 1000 * n)
    for method in ("FlyNN", "1NN")
    for site in ("here", "there")
    for n in (1, 2, 3)
)
NUMBERS = ResultTable(
    "numbers",
    "Numbers",
    ("n_units", "accuracy", "method", "site", "half_width", "sent_bytes"),
    ROWS,
    "All measured values.",
)
IMAGES = ResultTable(
    "images",
    "Images",
    ("text", "pixels", "verdict"),
    (
        ("3, is 8", encode_pixels([[0, 255], [255, 0]]), "wrong"),
        ("1, is 1", encode_pixels([[0, 99, 255]]), "right"),
    ),
)


def figure(kind, **changes):
    fields = {
        "name": kind,
        "kind": kind,
        "title": f"A {kind} figure",
        "table": "numbers",
        "x": "n_units",
        "y": "accuracy",
        "hue": "method",
        "facet": "site",
        "error": "half_width",
        "caption": f"Caption of a {kind} figure.",
    }
    if kind == "images":
        fields |= {"table": "images", "x": "text", "y": "pixels", "hue": "verdict"}
        fields |= {"facet": "", "error": ""}
    if kind == "heatmap":
        fields |= {"y": "method", "hue": "accuracy", "facet": "", "error": ""}
    return Figure(**(fields | changes))


RECORD = RunRecord(
    name="flynn.example",
    parameters={"n_units": 2048, "seed": 20240101, "classes": ["a", "b"]},
    rounds=(
        Round(0, "CountRequest", "sum", {"p": 1500, "q": 500}, {"p": 1, "q": 1}, 0.25),
        Round(1, "Finish", "gather", {"p": 1}, {"p": 1, "q": 1}, 0.5, {"q": "timed out"}),
    ),
    tables=(NUMBERS, IMAGES),
    figures=tuple(figure(kind) for kind in FIGURE_KINDS),
    notes=("A finding.",),
    started="2026-11-20T11:12:57+00:00",
    seconds=75.0,
    environment={"numpy": "2.4.6"},
    privacy={"epsilon": 1.0, "delta": 1e-5},
)
