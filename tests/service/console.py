"""A broker with collections of all kinds of objects, whose console tests visit."""

import asyncio
import csv
import threading
from contextlib import contextmanager

from fedneighbors.datasets import Schema
from fedneighbors.datasets._schema_columns import CategoricalColumn, NumericColumn, SetColumn
from fedneighbors.federation._messages import decode
from fedneighbors.secure_sum._keys import Identity
from fedneighbors.service._config import OfferSection
from fedneighbors.service._messages import LinkRequests
from fedneighbors.service._offers import OfferedObjects
from fedneighbors.service.console import _search
from tests.service.deployment import deployed

PROVIDERS = ("north", "south")
HOSTILE = "<script>alert(1)</script>"
FORMULA = "=1+1"
FILTERS = {"age": "number", "ward": "text", "smoker": "boolean"}
CITIES = {
    "Paris": (2.35, 48.86), "London": (-0.13, 51.51), "Berlin": (13.4, 52.52),
    "Madrid": (-3.7, 40.42), "Rome": (12.5, 41.9), "Vienna": (16.37, 48.21),
}  # fmt: skip
MOLECULES = {
    "aspirin": "CC(=O)Oc1ccccc1C(=O)O", "caffeine": "Cn1cnc2c1c(=O)n(C)c(=O)n2C",
    "ethanol": "CCO", "phenol": "Oc1ccccc1", "benzene": "c1ccccc1", "acetone": "CC(C)=O",
}  # fmt: skip
TITLES = ["federated search", "graph search", "deep learning", HOSTILE, FORMULA, "search"]
SCHEMA = Schema(
    (
        NumericColumn("age", 0, 100, missing="keep"),
        CategoricalColumn("sex", ("f", "m"), "keep"),
        SetColumn("codes", missing="keep"),
    )
)
CODES = "I10 E11 J45"
TABLES = {
    "points": [
        {"id": f"p{row}", "x": row % 4, "y": row // 4, "age": 40 + row, "ward": "ab"[row % 2],
         "smoker": row % 3 == 0, "note": HOSTILE} for row in range(12)
    ],
    **{n: [{"id": title, "title": title} for title in TITLES] for n in ("titles", "partial")},
    "words": [{"id": f"w{row}", "words": title} for row, title in enumerate(TITLES[:3])],
    "molecules": [{"id": name, "smiles": smiles} for name, smiles in MOLECULES.items()],
    "cities": [{"id": n, "longitude": x, "latitude": y} for n, (x, y) in CITIES.items()],
    "patients": [
        {"id": f"r{row}", "age": 30 + 5 * row, "sex": "fm"[row % 2], "codes": CODES[: 4 * row]}
        for row in range(8)
    ],
}  # fmt: skip
SETTINGS = {
    "points": {"metric": "euclidean", "filters": FILTERS},
    "titles": {"metric": "edit"},
    "partial": {"metric": "edit"},
    "words": {"metric": "jaccard"},
    "molecules": {"metric": "tanimoto", "filters": {"smiles": "molecule"}},
    "cities": {"metric": "haversine"},
    "patients": {"metric": "tabular", "schema": "schema.toml"},
    "private": {"metric": "euclidean"},
    "sealed": {"metric": "euclidean", "trust": "sealed"},
}
SOURCES = {
    "points": ["x", "y"], "private": ["x", "y"], "sealed": ["x", "y"], "titles": ["title"],
    "partial": ["title"],
    "words": ["words"], "molecules": ["smiles"], "cities": ["longitude", "latitude"],
    "patients": [],
}  # fmt: skip
PAYLOADS = {
    "points": ["age", "note"], "molecules": ["smiles"], "cities": ["longitude", "latitude"]
}  # fmt: skip

AREAS = {"north": [0.0, 40.0, 15.0, 53.0], "south": None}
"""West, south, east and north end of the cities that a provider states."""


def read_offers(provider, folder, position):
    """Return a provider's collections, from files with every second row."""
    offers = {}
    for name, setting in SETTINGS.items():
        if name == "partial" and provider != "north":
            continue
        rows = TABLES.get(name, TABLES["points"])[position::2]
        file = folder / f"{provider}-{name}.csv"
        with file.open("w", newline="", encoding="utf-8") as stream:
            writer = csv.DictWriter(stream, list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)
        source = {"file": file.name, "columns": SOURCES[name], "id": "id"}
        policy = {"level": "distances", "payload": PAYLOADS.get(name, [])}
        policy["area"] = AREAS[provider] if name == "cities" else None
        section = OfferSection.model_validate({**setting, "source": source, "policy": policy})
        secret = Identity.new().private
        offers[name] = OfferedObjects.read(provider, name, section, folder, secret=secret)
    return offers


SEARCHES = {
    "points": {"query": "1, 1", "min.age": "42", "is.ward": "a\nb", "is.smoker": "false"},
    "titles": {"query": "federated searching"},
    "words": {"query": "graph search"},
    "molecules": {"query": MOLECULES["aspirin"], "has.smiles": "[#6]", "payload": "true"},
    "cities": {"query.longitude": "4.9", "query.latitude": "52.37", "payload": "true"},
    "patients": {"query.age": "44", "query.sex": "f", "query.codes": "I10 E11"},
    "private": {"query": "[1 1]", "algorithm": "dann*"},
}
"""Fields of a form for each collection."""

BODIES = {
    "points": {
        "query": [1, 1],
        "where": {"age": {">=": 42}, "ward": {"in": ["a", "b"]}, "smoker": False},
    },
    "titles": {"query": "federated searching"},
    "words": {"query": ["graph", "search"]},
    "molecules": {
        "query": MOLECULES["aspirin"],
        "where": {"smiles": {"substructure": "[#6]"}},
        "payload": True,
    },
    "cities": {"query": [4.9, 52.37], "payload": True},
    "patients": {"query": {"age": 44, "sex": "f", "codes": "I10 E11"}},
    "private": {"query": [1, 1], "algorithm": "dann*"},
}
"""The same searches as bodies of the REST API."""


RADII = {
    "points": 2.0, "titles": 10, "words": 0.9, "molecules": 0.9, "cities": 500_000,
    "patients": 0.3, "private": 1.5,
}  # fmt: skip
"""A radius for each collection, within which are some objects, but not all."""


@contextmanager
def held(deployment, n_sent=0):
    """Let north wait for requests during the block, after the first ones."""
    is_released, numbers = threading.Event(), iter(range(1000))
    link = deployment.broker.registry.links["north"]
    send = link._send

    async def wait(frame):
        has_requests = decode(frame, (LinkRequests,)).frames  # not only names of ended queries
        if has_requests and next(numbers) >= n_sent:
            await asyncio.to_thread(is_released.wait)
        await send(frame)

    link._send = wait
    patience = _search.PATIENCE_S
    _search.PATIENCE_S = 0.0
    try:
        yield is_released
    finally:
        is_released.set()
        link._send, _search.PATIENCE_S = send, patience


@contextmanager
def running_console(folder):
    """Run a broker and the providers north and south during the block."""
    (folder / "schema.toml").write_text(SCHEMA.to_toml(), encoding="utf-8")
    sections = {name: {**one, "providers": PROVIDERS} for name, one in SETTINGS.items()}
    sections["private"] |= {"algorithm": "dann*", "privacy": {"epsilon": 1.0, "delta": 1e-6}}
    sections["partial"] |= {"providers": ("north", "ghost")}
    sections["absent"] = {"metric": "edit", "providers": ["ghost"]}
    patience = _search.PATIENCE_S
    _search.PATIENCE_S = 60.0  # results are shown at once, also on a slow machine
    server = {"listen": "127.0.0.1:0", "heartbeat_s": 10.0}  # no link is lost on a slow machine
    with deployed(folder, sections, server=server) as running:
        for position, provider in enumerate(PROVIDERS):
            running.start(provider, read_offers(provider, folder, position))
        running.wait(*PROVIDERS)
        yield running
    _search.PATIENCE_S = patience
