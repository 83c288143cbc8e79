"""``fedneighbors search``, ``vote`` and ``mcp``: queries of users or language models."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedneighbors.cli._console import echo

if TYPE_CHECKING:
    from fedneighbors.service._client import RemoteNeighbors

_ENVIRONMENT = "FEDNEIGHBORS_TOKEN"
_MAX_ROWS = 50
Certificate = Annotated[
    Path | None, typer.Option(help="Certificate of the broker, if it is self-signed (PEM).")
]
Keys = Annotated[
    Path | None,
    typer.Option(help="Lines of `fedneighbors provider key`, to seal queries (TOML)."),
]
Purpose = Annotated[
    str, typer.Option(help="Purpose of queries, which providers may require; it is logged.")
]

Partial = Annotated[
    bool, typer.Option("--allow-partial", help="Answer without providers that are missing.")
]
Json = Annotated[bool, typer.Option("--json", help="Print the broker's answer.")]
Query = Annotated[
    str,
    typer.Argument(
        help="Comma-separated numbers; a text; the words of a set; SMILES; or a row such as "
        '\'{"age": 64, "sex": "f"}\', or its cells in order, such as 64,f. After -- if it '
        "begins with a minus."
    ),
]


def search(
    url: Annotated[str, typer.Argument(help="Address of the broker.")],
    collection: Annotated[str, typer.Argument(help="Name of the collection.")],
    query: Query,
    k: Annotated[int, typer.Option("-k", min=1, help="Number of neighbors.")] = 10,
    radius: Annotated[
        float | None, typer.Option(help="Find all objects within this distance, in place of -k.")
    ] = None,
    count: Annotated[
        bool, typer.Option("--count", help="Only count the objects within the radius.")
    ] = False,
    where: Annotated[
        str, typer.Option(help='Filter as JSON, such as \'{"age": {">=": 50}}\'.')
    ] = "",
    algorithm: Annotated[str, typer.Option(help="In place of the collection's.")] = "",
    payload: Annotated[
        bool, typer.Option("--payload", help="Show the columns that the providers allow.")
    ] = False,
    allow_partial: Partial = False,
    purpose: Purpose = "",
    as_json: Json = False,
    certificate: Certificate = None,
    keys: Keys = None,
) -> None:
    """Find the nearest objects of a query in a search service.

    The token is read from the environment variable FEDNEIGHBORS_TOKEN.
    """
    from fedneighbors.datasets._objects import read_json, read_text_query
    from fedneighbors.service._client import RemoteNeighbors

    token = read_token()
    if count and radius is None:
        raise typer.BadParameter("--count needs --radius")
    if payload and count:
        raise typer.BadParameter("--payload is for searches; omit it with --count")
    filters = read_json(where, "--where") if where else None
    with RemoteNeighbors(
        url,
        collection=collection,
        token=token,
        algorithm=algorithm or None,
        payload=payload,
        allow_partial=allow_partial or None,
        purpose=purpose or None,
        certificate=certificate,
        keys=None if keys is None else read_keys(keys),
    ) as remote:
        description = remote.describe()
        remote.check_objects(description)
        names = description["columns"] or ()
        queries = [read_text_query(query, description["objects"], columns=tuple(names))]
        if radius is None:
            remote.kneighbors(queries, k, where=filters)
        else:
            (remote.count if count else remote.radius_neighbors)(queries, radius, where=filters)
        if as_json:
            typer.echo(json.dumps(remote.results_[0]))
        else:
            _print_answer(remote, description["metric"])


def vote(
    url: Annotated[str, typer.Argument(help="Address of the broker.")],
    collection: Annotated[str, typer.Argument(help="Name of a collection of voters.")],
    rows: Annotated[
        str, typer.Argument(help='A row or a list of rows, such as \'{"age": 64, "sex": "f"}\'.')
    ],
    allow_partial: Partial = False,
    purpose: Purpose = "",
    as_json: Json = False,
    certificate: Certificate = None,
) -> None:
    """Ask the classifiers of a search service for votes, and average them.

    Each weighs its balanced accuracy on held-out rows, as the provider states it. The token is read
    from the environment variable FEDNEIGHBORS_TOKEN.
    """
    from fedneighbors.cli._results import print_grid
    from fedneighbors.datasets._objects import read_json
    from fedneighbors.records import ResultTable
    from fedneighbors.service._client import RemoteNeighbors

    with RemoteNeighbors(
        url,
        collection=collection,
        token=read_token(),
        allow_partial=allow_partial or None,
        purpose=purpose or None,
        certificate=certificate,
    ) as remote:
        classes, probabilities = remote.vote(read_json(rows, "the rows"))
        answers = remote.results_
    if as_json:
        for answer in answers:
            typer.echo(json.dumps(answer))
        return
    labels = [label for answer in answers for label in answer["labels"]]
    numbered = enumerate(zip(labels, probabilities.tolist(), strict=True), start=1)
    found = tuple((row, label, *each) for row, (label, each) in numbered)
    hidden = f"{len(found) - _MAX_ROWS} more: see --json" if len(found) > _MAX_ROWS else ""
    columns = ("row", "label", *map(str, classes))
    print_grid(ResultTable("votes", "Average votes", columns, found[:_MAX_ROWS], hidden))
    weights = answers[0]["weights"]
    stated = [f"{name} weighs {weight:.3f}" for name, weight in weights.items()]
    stated += [f"{name} is missing: {why}" for name, why in answers[0]["missing"].items()]
    echo("; ".join(stated), "dim")


def mcp(
    url: Annotated[str, typer.Option(help="Address of the broker.")],
    collection: Annotated[
        list[str], typer.Option(help="Collection that the model may search; may be repeated.")
    ],
    embed: Annotated[
        str,
        typer.Option(
            metavar="MODULE:FUNCTION",
            help="Function that turns a text into a vector, for collections of vectors. Texts of "
            "queries then stay on this machine.",
        ),
    ] = "",
    purpose: Purpose = "",
    token_file: Annotated[
        Path | None, typer.Option(help="File with the token, in place of FEDNEIGHBORS_TOKEN.")
    ] = None,
    certificate: Certificate = None,
    keys: Keys = None,
) -> None:
    """Let a language model search collections, over the Model Context Protocol.

    The program of the model starts this command, and talks to it over standard input and output.
    The token is read from the environment variable FEDNEIGHBORS_TOKEN or a file.
    """
    import asyncio

    from fedneighbors.service._client import AsyncRemoteNeighbors
    from fedneighbors.service._mcp import SearchTools, load_embedding, serve_tools

    options: dict[str, Any] = {
        "token": read_token(token_file),
        "purpose": purpose or None,
        "certificate": certificate,
        "keys": None if keys is None else read_keys(keys),
    }
    function = load_embedding(embed) if embed else None

    async def serve() -> None:
        names = dict.fromkeys(collection)
        searches = [AsyncRemoteNeighbors(url, collection=name, **options) for name in names]
        await serve_tools(await SearchTools.connect(searches, function))

    asyncio.run(serve())


def read_token(path: Path | None = None) -> str:
    """Return the token of a file, or of the environment."""
    import os

    if path is not None and not path.is_file():
        raise ValueError(f"there is no file {path}; write a token of `fedneighbors broker token`")
    found = os.environ.get(_ENVIRONMENT, "") if path is None else path.read_text("utf-8")
    if not found.strip():
        place = _ENVIRONMENT if path is None else path
        raise ValueError(f"no token in {place}; ask the operator of the broker for one")
    return found.strip()


def read_keys(path: Path) -> dict[str, str]:
    """Return the public key of each provider in a TOML file."""
    import tomllib

    if not path.exists():
        raise ValueError(f"there is no file {path}; write it with `fedneighbors provider key`")
    try:
        return {name: str(key) for name, key in tomllib.loads(path.read_text("utf-8")).items()}
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ValueError(
            f"{path}: expected lines of `fedneighbors provider key`: {error}"
        ) from None


def _as_scalar(cell: Any) -> Any:
    """Return a cell of a table, of lists and mappings their JSON."""
    return json.dumps(cell, ensure_ascii=False) if isinstance(cell, list | dict) else cell


def _print_answer(remote: "RemoteNeighbors", metric: str) -> None:
    from fedneighbors.cli._results import print_grid
    from fedneighbors.datasets._object_cells import FEW_CELLS, SIMILARITIES
    from fedneighbors.records import ResultTable

    (answer,) = remote.results_
    if "count" in answer:
        counts = ", ".join(f"{name} {n}" for name, n in answer["counts"].items())
        echo(f"{answer['count']} object{'s' * (answer['count'] != 1)}: {counts}")
    else:
        columns = remote.results_.to_columns()
        columns.pop("query")
        if any(one["distance"] is None for one in answer["neighbors"]):
            columns.pop("distance")  # a user sees all or none
        elif metric in SIMILARITIES and "similarity" not in columns:
            columns["similarity"] = 1 - columns["distance"]
        rows = tuple(zip(*(map(_as_scalar, cells) for cells in columns.values()), strict=True))
        hidden = f"{len(rows) - _MAX_ROWS} more: see --json" if len(rows) > _MAX_ROWS else ""
        title = f"{len(rows)} nearest object{'s' * (len(rows) != 1)}"
        print_grid(ResultTable("nearest", title, tuple(columns), rows[:_MAX_ROWS], hidden))
        if metric == "tabular":
            echo(FEW_CELLS, "dim")
    facts = [
        "exact" if answer["exact"] else "not certified as exact",
        *([answer["algorithm"]] if answer.get("algorithm") else []),
        f"answered by {', '.join(answer['answered']) or 'nobody'}",
        *(f"{name} is missing: {why}" for name, why in answer["missing"].items()),
    ]
    echo("; ".join(facts), "dim")
