"""Searches by language models: a server of the Model Context Protocol, a LangChain retriever."""

import asyncio
import json
import os
import sys
from contextlib import asynccontextmanager

import numpy as np
import pytest
from langchain_core.embeddings import Embeddings
from langchain_core.runnables import RunnableLambda
from mcp import ClientSession, StdioServerParameters, stdio_client
from pydantic import ValidationError
from typer.testing import CliRunner

from fedneighbors.cli._main import app
from fedneighbors.datasets import CategoricalColumn, NumericColumn, Schema
from fedneighbors.errors import DataError
from fedneighbors.service import AsyncRemoteNeighbors, FederatedRetriever, ServiceError
from fedneighbors.service._config import OfferSection
from fedneighbors.service._offers import OfferedObjects
from fedneighbors.service._sealed import make_sealing_key
from tests.service.deployment import deployed

OWNERS = ["north", "south"]
TEXTS = {
    "north": ["the pump leaks oil", "the valve is stuck", "oil on the floor"],
    "south": ["a pump without pressure", "rust at the valve", "the motor hums"],
}
LETTERS = "abcdefghijklmnopqrstuvwxyz"
TYPES = {"year": "number"}
SCHEMA = Schema((NumericColumn("year", 2000, 2030), CategoricalColumn("part", ("pump", "valve"))))
COLLECTIONS = {  # settings, and columns of the objects
    "reports": ({"metric": "cosine", "filters": TYPES}, list(LETTERS)),
    "titles": ({"metric": "edit"}, ["text"]),
    "sealed": ({"metric": "edit", "trust": "sealed"}, ["text"]),
    "tags": ({"metric": "jaccard"}, ["text"]),
    "cities": ({"metric": "haversine"}, ["lon", "lat"]),
    "molecules": ({"metric": "tanimoto"}, ["smiles"]),
    "parts": ({"metric": "tabular", "schema": "parts.toml"}, []),
    "private": ({"metric": "edit"}, ["text"]),
}
EMBEDDING = f"""
import sys

print("this line must not reach the protocol")

def embed(text):
    print("nor this one")
    return [text.count(letter) + 0.001 for letter in "{LETTERS}"]
"""


class LetterCounts(Embeddings):
    """The embedding of the file that the server loads."""

    def embed_query(self, text):
        return [text.count(letter) + 0.001 for letter in LETTERS]

    def embed_documents(self, texts):
        return [self.embed_query(text) for text in texts]


def write_reports(folder, provider):
    counts = LetterCounts().embed_documents(TEXTS[provider])
    names = ["id", "text", "year", "lon", "lat", "smiles", "part", *LETTERS]
    lines = [
        [f"{provider}-{row}", text, 2020 + row, row, 50 + row, "CCO" + "C" * row, "pump", *vector]
        for row, (text, vector) in enumerate(zip(TEXTS[provider], counts, strict=True))
    ]
    table = "\n".join(",".join(map(str, line)) for line in [names, *lines])
    (folder / f"{provider}.csv").write_text(table)


@pytest.fixture(scope="module")
def deployment(tmp_path_factory):
    folder = tmp_path_factory.mktemp("broker")
    (folder / "parts.toml").write_text(SCHEMA.to_toml(), encoding="utf-8")
    (folder / "embedding.py").write_text(EMBEDDING)
    sections = {name: {**one, "providers": OWNERS} for name, (one, _) in COLLECTIONS.items()}
    sections["private"] |= {"privacy": {"epsilon": 1.0, "delta": 1e-6}}
    with deployed(folder, sections) as running:
        for provider in OWNERS:
            write_reports(folder, provider)
            running.enrol(provider)
            offers = {
                name: OfferedObjects.read(
                    provider,
                    name,
                    OfferSection.model_validate(
                        {
                            **section,
                            "source": {"file": f"{provider}.csv", "columns": columns, "id": "id"},
                            "policy": {"level": "distances", "payload": ["text", "year"]},
                        }
                    ),
                    folder,
                    secret=running.identities[provider].private,
                )
                for name, (section, columns) in COLLECTIONS.items()
            }
            running.start(provider, offers)
        running.wait(*OWNERS)
        running.folder = folder
        running.keys = {
            name: make_sealing_key(identity.private).hex()
            for name, identity in running.identities.items()
        }
        lines = [f'"{name}" = "{key}"' for name, key in running.keys.items()]
        (folder / "keys.toml").write_text("\n".join(lines))
        (folder / "token.txt").write_text(running.token + "\n")
        yield running


@asynccontextmanager
async def mcp_session(deployment, *collections, options=()):
    """Start ``fedneighbors mcp``, and connect the client of the protocol's own package."""
    command = "from fedneighbors.cli._main import main; main()"
    chosen = [word for name in collections for word in ("--collection", name)]
    access = ["--token-file", "token.txt", "--certificate", str(deployment.certificate)]
    server = StdioServerParameters(
        command=sys.executable,
        args=["-c", command, "mcp", "--url", deployment.url, *access, *chosen, *options],
        cwd=deployment.folder,
        env={**os.environ, "FEDNEIGHBORS_TOKEN": ""},
    )
    async with stdio_client(server) as streams, ClientSession(*streams) as session:
        await session.initialize()
        yield session


def in_session(deployment, *collections, work, options=()):
    """Return the result of work with a session of the server."""

    async def run():
        async with mcp_session(deployment, *collections, options=options) as session:
            return await work(session)

    return asyncio.run(run())


def search_all(*arguments):
    """Return work that calls the tool ``search`` several times."""

    async def work(session):
        return [await session.call_tool("search", one) for one in arguments]

    return work


def test_a_model_finds_objects_of_each_kind(deployment):
    queries = {
        "reports": LetterCounts().embed_query("oil pump leaks"),
        "titles": "the pump leeks oil",
        "tags": ["the", "pump", "leaks", "oil"],
        "cities": [0.1, 50.1],
        "molecules": "CCO",
        "parts": {"year": 2020, "part": "pump"},
    }
    calls = [{"collection": name, "query": query, "k": 2} for name, query in queries.items()]

    results = in_session(deployment, *queries, work=search_all(*calls))

    for (name, query), result in zip(queries.items(), results, strict=True):
        found = result.structured_content
        assert not result.is_error, result.content
        assert json.loads(result.content[0].text) == found
        given = frozenset(query) if name == "tags" else query
        with deployment.client(name, payload=True) as search:
            search.kneighbors([given], 2)
            expected = search.results_[0]
        assert found["neighbors"] == expected["neighbors"]
        assert (found["exact"], found["trust"], found["missing"]) == (True, "trusted", {})
        assert (found["collection"], found["answered"]) == (name, expected["answered"])
        assert {one["provider"] for one in found["neighbors"]} <= set(OWNERS)


def test_tools_state_types_and_visibility(deployment):
    async def work(session):
        return (await session.list_tools()).tools, await session.call_tool("list_collections", {})

    names = ["reports", "cities", "parts"]
    (search, listing), listed = in_session(deployment, *names, work=work)

    schema = search.input_schema
    assert schema["properties"]["collection"]["enum"] == names
    vector, place, row = schema["properties"]["query"]["anyOf"]
    assert (vector["type"], vector["minItems"], vector["maxItems"]) == ("array", 26, 26)
    assert (place["minItems"], place["maxItems"]) == (2, 2)
    assert place["description"] == "cities: longitude and latitude in degrees"
    assert row["type"] == "object"
    assert '"part": ["pump", "valve"]' in row["description"]
    assert schema["required"] == ["collection", "query"]
    assert "filters: year (number)" in search.description
    assert search.description.count("the broker and all providers see the query") == 3
    assert search.output_schema["properties"]["exact"]["type"] == "boolean"
    assert search.annotations.read_only_hint
    assert listing.name == "list_collections"
    collections = listed.structured_content["collections"]
    assert [one["name"] for one in collections] == names
    assert [one["n_objects"] for one in collections] == [6, 6, 6]
    assert "the broker and all providers see" in collections[0]["visible_to"]


def test_a_text_is_embedded_before_it_leaves(deployment, monkeypatch):
    seen, read = [], deployment.broker.collections["reports"].read_query

    def keep(value, *arguments, **options):
        seen.append(value)
        return read(value, *arguments, **options)

    monkeypatch.setattr(deployment.broker.collections["reports"], "read_query", keep)

    async def work(session):
        call = {"collection": "reports", "query": "oil pump leaks", "k": 1}
        filtered = {**call, "where": {"year": {">=": 2021}}}
        tools = (await session.list_tools()).tools
        return tools[0], *(await search_all(call, filtered)(session))

    tool, result, filtered = in_session(
        deployment, "reports", work=work, options=["--embed", "embedding:embed"]
    )

    assert tool.input_schema["properties"]["query"]["type"] == "string"
    assert "its vector is sent" in tool.description
    assert result.structured_content["neighbors"][0]["payload"]["text"] == "the pump leaks oil"
    assert filtered.structured_content["neighbors"][0]["payload"]["year"] >= 2021
    assert seen == [LetterCounts().embed_query("oil pump leaks")] * 2


def test_a_sealed_collection_is_searched_with_keys_only(deployment):
    async def work(session):
        tool = (await session.list_tools()).tools[0]
        return tool, *(
            await search_all({"collection": "sealed", "query": "rust at a valve"})(session)
        )

    tool, result = in_session(deployment, "sealed", work=work, options=["--keys", "keys.toml"])

    assert "the broker sees neither query, filter, ids nor payloads" in tool.description
    found = result.structured_content["neighbors"]
    assert len(found) == 5
    assert found[0]["payload"]["text"] == "rust at the valve"
    assert result.structured_content["trust"] == "sealed"
    options = ["--certificate", str(deployment.certificate)]
    options += ["--token-file", str(deployment.folder / "token.txt"), "--collection", "sealed"]
    done = CliRunner().invoke(app, ["mcp", "--url", deployment.url, *options])
    assert done.exit_code == 1
    assert "'sealed' is sealed: pass the file of the providers' keys" in " ".join(
        done.output.split()
    )


def test_a_private_answer_has_no_payload(deployment):
    call = {"collection": "private", "query": "rust", "k": 1}

    (result,) = in_session(deployment, "private", work=search_all(call))

    assert not result.is_error, result.content
    assert [one["payload"] for one in result.structured_content["neighbors"]] == [{}]


def test_a_wrong_argument_is_a_result_that_says_what_was_expected(deployment):
    title, report = {"collection": "titles", "query": "a"}, {"collection": "reports"}
    wrong = {
        "expected a collection of reports, titles, got 'parts'": {**title, "collection": "parts"},
        "query: input should be a valid list": {**report, "query": "pump"},
        "query: list should have at least 26 items": {**report, "query": [1.0]},
        "query: input should be a valid string": {**title, "query": [1.0]},
        "k: input should be less than or equal to 100": {**title, "k": 101},
        "k: input should be a valid integer": {**title, "k": True},
        "0: input should be a valid number": {**report, "query": [True] * 26},
        "radius: extra inputs are not permitted": {**title, "radius": 1},
        "query: field required": report,
        "(invalid-query, status 422)": {**report, "query": [1.0] * 26, "where": {"text": "a"}},
    }

    results = in_session(deployment, "reports", "titles", work=search_all(*wrong.values()))

    for expected, result in zip(wrong, results, strict=True):
        assert result.is_error
        assert expected in result.content[0].text


def test_a_missing_provider_is_an_error_or_named(tmp_path):
    sections = {
        "strict": {"metric": "edit", "providers": OWNERS},
        "partial": {"metric": "edit", "providers": OWNERS, "allow_partial": True},
    }
    with deployed(tmp_path, sections) as running:
        running.folder = tmp_path
        write_reports(tmp_path, "north")
        (tmp_path / "token.txt").write_text(running.token)
        section = {"metric": "edit", "source": {"file": "north.csv", "columns": ["text"]}}
        read = OfferSection.model_validate(section)
        offers = {
            name: OfferedObjects.read("north", name, read, tmp_path, secret=b"")
            for name in sections
        }
        running.start("north", offers)
        running.wait("north")
        calls = [{"collection": name, "query": "oil", "k": 1} for name in sections]

        strict, partial = in_session(running, *sections, work=search_all(*calls))

    assert strict.is_error
    assert "(provider-missing, status 503)" in strict.content[0].text
    found = partial.structured_content
    assert (found["exact"], found["answered"]) == (False, ["north"])
    assert list(found["missing"]) == ["south"]
    assert found["neighbors"][0]["distance"] is None


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--embed", "nowhere:embed"], "expected MODULE:FUNCTION, got 'nowhere:embed'"),
        (["--embed", "json"], "expected MODULE:FUNCTION, got 'json'"),
        (["--embed", "json:__name__"], "which is no function"),
        (["--token-file", "nowhere.txt"], "there is no file nowhere.txt"),
        ([], "no token in FEDNEIGHBORS_TOKEN"),
    ],
)
def test_a_wrong_setting_is_one_line(options, message):
    words = ["mcp", "--url", "http://127.0.0.1:9", "--collection", "titles", *options]
    token = "fn_a" if "--embed" in options else ""

    done = CliRunner().invoke(app, words, env={"FEDNEIGHBORS_TOKEN": token, "COLUMNS": "300"})

    assert done.exit_code == 1
    assert message in " ".join(done.output.split())


def test_a_retriever_returns_documents_of_all_providers(deployment):
    with deployment.client("reports", payload=True) as search:
        retriever = FederatedRetriever(search=search, embeddings=LetterCounts(), k=3)

        documents = retriever.invoke("oil pump leaks")

        distances, objects = search.kneighbors([LetterCounts().embed_query("oil pump leaks")], 3)
        assert [(one.metadata["provider"], one.metadata["id"]) for one in documents] == objects[0]
        assert [one.metadata["distance"] for one in documents] == distances[0].tolist()
        assert documents[0].page_content == "the pump leaks oil"
        assert documents[0].id == "north/north-0"
        assert documents[0].metadata == {
            "provider": "north",
            "id": "north-0",
            "distance": distances[0][0],
            "trust": "trusted",
            "exact": True,
            "payload": {"year": 2020},
        }
        filters = {"year": {">=": 2022}}
        for one in (retriever.invoke("oil", k=9, where=filters), retriever.batch(["oil"])[0]):
            assert len(one) in (2, 3)
        filtered = FederatedRetriever(search=search, embeddings=LetterCounts(), where=filters)
        assert [one.metadata["payload"]["year"] for one in filtered.invoke("oil")] == [2022, 2022]
        chain = retriever | RunnableLambda(lambda found: [one.page_content for one in found])
        assert chain.invoke("oil pump leaks")[0] == "the pump leaks oil"


def test_documents_are_the_same_with_asyncio(deployment):
    options = {"collection": "reports", "token": deployment.token, "payload": True}
    texts = ["oil pump leaks", "valve", "rust", "motor hums"]

    async def retrieve_all(sync):
        async with AsyncRemoteNeighbors(
            deployment.url, certificate=deployment.certificate, **options
        ) as search:
            with pytest.raises(TypeError, match="expected RemoteNeighbors for invoke"):
                FederatedRetriever(search=search).invoke("a")
            retrievers = [
                FederatedRetriever(search=one, embeddings=LetterCounts(), k=2)
                for one in (search, sync)
            ]
            return [
                await asyncio.gather(*(one.ainvoke(text) for text in texts)) for one in retrievers
            ]

    with deployment.client("reports", payload=True) as sync:
        retriever = FederatedRetriever(search=sync, embeddings=LetterCounts(), k=2)
        expected = [retriever.invoke(text) for text in texts]
        assert asyncio.run(retrieve_all(sync)) == [expected, expected]


@pytest.mark.parametrize(
    ("collection", "query", "content", "first"),
    [
        ("titles", "the motor hum", "text", "the motor hums"),
        ("tags", "rust at valve", "text", "rust at the valve"),
        ("molecules", "CCOCC", "year", "2022"),
        ("cities", "0.1,50.1", "year", "2020"),
        ("parts", '{"year": 2022, "part": "pump"}', "year", "2022.0"),
        ("sealed", "the motor hum", "text", "the motor hums"),
    ],
)
def test_without_an_embedding_the_text_is_the_query(deployment, collection, query, content, first):
    keys = deployment.keys if collection == "sealed" else None
    with deployment.client(collection, payload=True, keys=keys) as search:
        retriever = FederatedRetriever(search=search, k=1, content=content)
        (document,) = retriever.invoke(query)
    assert document.page_content == first
    assert document.metadata["trust"] == ("trusted" if keys is None else "sealed")


def test_a_retriever_refuses_what_it_cannot_do(deployment):
    with deployment.client("titles") as search:
        with pytest.raises(ValueError, match="expected a client with payload=True"):
            FederatedRetriever(search=search).invoke("a")
        with pytest.raises(ValidationError, match="greater than or equal to 1"):
            FederatedRetriever(search=search, k=0)
    with deployment.client("titles", payload=True) as search:
        retriever = FederatedRetriever(search=search, content="body")
        with pytest.raises(DataError, match=r"has no column 'body', only \['text', 'year'\]"):
            retriever.invoke("a")
        with pytest.raises(TypeError, match="expected k or where, got 'radius'"):
            retriever.invoke("a", radius=3)
        with pytest.raises(ServiceError, match="invalid-body"):
            retriever.invoke("a", k=0)
        assert deployment.token not in retriever.model_dump_json() + repr(retriever)
    with deployment.client("reports", payload=True) as search:
        retriever = FederatedRetriever(search=search)
        with pytest.raises(ValueError, match=r"expected 1 comma.* pass embeddings"):
            retriever.invoke("a text without an embedding")
    with deployment.client("sealed", payload=True) as search:
        for embeddings in (None, LetterCounts()):
            retriever = FederatedRetriever(search=search, embeddings=embeddings)
            with pytest.raises(ValueError, match="is sealed: pass the file of the providers' keys"):
                retriever.invoke("a")


def test_vectors_of_numpy_are_queries(deployment):
    class Arrays(LetterCounts):
        def embed_query(self, text):
            return np.array(super().embed_query(text), np.float32)

    with deployment.client("reports", payload=True) as search:
        (document,) = FederatedRetriever(search=search, embeddings=Arrays(), k=1).invoke("hums")
    assert document.page_content == "the motor hums"
