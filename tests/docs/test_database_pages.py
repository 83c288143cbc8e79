"""The SQL and TOML blocks of the pages on databases work as they are, in real servers."""

import re
import tomllib

import numpy as np
import pytest

from fedneighbors.service._config import OfferSection, ProviderConfig
from fedneighbors.service._offers import OfferedObjects
from fedneighbors.sources import SourceSettings
from fedneighbors.sources._pushed import find_source
from fedneighbors.testing import check_source
from tests.architecture.tree import ROOT

FOLDER = ROOT / "docs" / "how-to"
PASSWORD = "..."  # as on the page


def blocks(page, language):
    """Return the blocks of a language, by the title of their section."""
    found = {}
    for section in (FOLDER / page).read_text("utf-8").split("\n## ")[1:]:
        text = re.findall(rf"^```{language}\n(.*?)^```", section, re.M | re.S)
        if text:
            found[section.partition("\n")[0]] = text
    return found


SQL = blocks("search-in-postgresql.md", "sql")
ROLE = SQL["A role that only reads"]
PLACES = SQL["Points in PostGIS"], SQL["A version, for private search"], SQL["Molecules in RDKit"]


@pytest.fixture(scope="module")
def config(tmp_path_factory):
    """Return the configuration that the page on PostgreSQL builds up."""
    folder = tmp_path_factory.mktemp("provider")
    parts = blocks("search-in-postgresql.md", "toml").values()
    (folder / "provider.toml").write_text("\n".join(block for part in parts for block in part))
    (folder / "db-password").write_text(PASSWORD)
    return ProviderConfig.read(folder / "provider.toml")


@pytest.fixture(scope="module")
def map_database(postgres):
    name = postgres.new_database(*ROLE, *(block for part in PLACES for block in part))
    return postgres, name


def read(config, name, database, **changes):
    """Read a collection of the page from another address, as the role of the page."""
    server, database = database
    section = config.collections[name].model_dump(by_alias=True)
    section["source"] |= {"database": server.url(database, user="fedneighbors"), **changes}
    return OfferedObjects.read(
        "north", name, OfferSection.model_validate(section), config.folder, secret=b"secret"
    )


def test_places_of_the_page_are_served_and_have_a_version(config, map_database):
    server, database = map_database
    insert = "INSERT INTO clinics SELECT i, ST_Point(i, 50)::geography, i FROM generate_series"
    with server.connect(database) as connection:
        connection.execute(f"{insert}(1, 40) AS i")
        found = read(config, "clinics", map_database)
        source = found.party.source
        first = source.open(np.array([7.1, 50.0]), {"beds": {">=": 8}})
        connection.execute(f"{insert}(41, 42) AS i")
        second = source.open(np.array([7.1, 50.0]), None)

        assert found.offer.n_objects == 40
        assert first.next(2).ids == ("8", "9")
        for query in (first, second):
            query.close()
        third = source.open(np.array([7.1, 50.0]), None)
        assert third.epoch != first.epoch
        third.close()
        for change in ("DELETE FROM clinics WHERE beds > 40", "TRUNCATE clinics"):
            connection.execute(change)
            after = source.open(np.array([7.1, 50.0]), None)
            assert after.epoch not in (first.epoch, third.epoch, None)
            after.close()
        found.release()


def test_molecules_of_the_page_are_found(config, map_database):
    found = read(config, "molecules", map_database)
    toluene = np.array(found.party.source.candidates.sample[0])
    query = found.party.source.open(toluene, None)

    assert found.offer.n_objects == 2
    assert 8 * len(toluene) == 2048
    assert set(query.next(2).ids) == {"toluene", "phenol"}
    query.close()
    found.release()


def test_vectors_of_the_page_are_found_exactly_or_approximately(config, pgvector):
    rows = np.random.default_rng(0).normal(size=(60, 384)).astype(np.float32)
    database = pgvector.new_database(*ROLE, *SQL["Vectors in pgvector"])
    with pgvector.connect(database) as connection, connection.cursor() as cursor:
        values = [(i, str(row.tolist())) for i, row in enumerate(rows)]
        cursor.executemany("INSERT INTO notes VALUES (%s, %s)", values)
    found = read(config, "notes", (pgvector, database))
    check_source(
        found.party.source.candidates, rows.astype(float), [str(i) for i in range(60)],
        metric="cosine", queries=rows[:5].astype(float),
    )  # fmt: skip
    approximate = read(config, "notes", (pgvector, database), exact=False)

    for one in (found, approximate):
        query = one.party.source.open(rows[7].astype(float), None)
        assert query.next(1).ids == ("7",)
        assert query.exact is (one is found)
        query.close()
        one.release()


def test_the_source_of_the_page_is_found_by_its_entry_point(tmp_path, monkeypatch):
    page = "write-a-source.md"
    source, triggers, *_ = (block for part in blocks(page, "python").values() for block in part)
    project, config = blocks(page, "toml")["Register it"]
    points = tomllib.loads(project)["project"]["entry-points"]
    lines = [f"[{group}]\n{name} = {target}" for group, entries in points.items()
             for name, target in entries.items()]  # fmt: skip
    (tmp_path / "titles_source.py").write_text(source)
    package = tmp_path / "titles_source-1.dist-info"
    package.mkdir()
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: titles-source\nVersion: 1\n")
    (package / "entry_points.txt").write_text("\n".join(lines))
    (tmp_path / "provider.toml").write_text(config)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    exec(source + triggers, {"__name__": "page"})

    loaded = ProviderConfig.read(tmp_path / "provider.toml")
    section = loaded.collections["titles"]
    found = OfferedObjects.read("north", "titles", section, loaded.folder, secret=b"secret")

    assert found.offer.n_objects == 34
    with pytest.raises(Exception, match="the option database alone"):
        find_source("sqlite-titles")(SourceSettings("edit", {"databse": "titles.sqlite"}))


def test_the_source_of_the_page_on_loading_is_valid():
    (fragment,) = blocks("connect-a-database.md", "toml")["PostgreSQL"]
    ((name, collection),) = tomllib.loads(fragment)["collections"].items()

    section = OfferSection.model_validate({"metric": "euclidean", **collection})

    assert name == "patients"
    assert section.source.timeout_s == 120
