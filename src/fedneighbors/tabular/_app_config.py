"""Flower apps of methods on tables, and the configurations of runs and nodes.

A run's configuration has the settings of the coordinator; a node's has the party's name and files:
``party-name``, ``data``, ``schema`` or ``label``, and ``model-folder``. The coordinator raises an
error if a setting has the wrong type. A node's refusals do not contain its paths.
"""

import json
import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol, TypeVar

from fedneighbors.datasets._dataset import Dataset
from fedneighbors.datasets._reading import dataset_from_table, read_columns, read_rows
from fedneighbors.datasets._schema import EncodedRows, Schema
from fedneighbors.datasets._schema_columns import CategoricalColumn, Column
from fedneighbors.datasets._table import Table, missing_cells
from fedneighbors.errors import DataError, LedgerError, MissingDataError, MissingExtraError
from fedneighbors.federation._flower import RUN_KEY, Config, client_app, server_app
from fedneighbors.federation._loop import Coordinator, Outcome
from fedneighbors.federation._party_policy import SingleUseParty
from fedneighbors.federation._roles import Party, Refused
from fedneighbors.federation._stores import FolderStore
from fedneighbors.privacy._policy import Privacy, privacy_from
from fedneighbors.records._storage import check_folder, replace_file
from fedneighbors.tabular._agreement import AgreeingParty, agree_on_schema
from fedneighbors.tabular._model_file import SCHEMA_SUFFIX, copy_schema, pending_path
from fedneighbors.tabular._schema import Label

log = logging.getLogger(__name__)


class _Savable(Protocol):
    def save(self, path: str | Path) -> None: ...


_Model = TypeVar("_Model", bound=_Savable)

AccountOf = Callable[[Mapping[str, Any]], dict[str, Any]]
"""Function from a node's configuration to the arguments with which a private party charges: the
open ``ledger`` and the name ``dataset``, and optionally ``user`` and ``bits``."""


class BuildParty(Protocol):
    """Function that builds a party from its node's configuration."""

    def __call__(self, node: Config, account: AccountOf = ...) -> Party:
        """Build the party.

        Parameters
        ----------
        node : mapping
            The node's configuration.
        account : AccountOf
            :func:`party_account` by default, the ledger of the node; an audit passes a ledger in
            memory. Only nodes with ``epsilon`` use it.

        Raises
        ------
        Refused
            If a key is missing, or a file or the ledger cannot be used.
        """
        ...


def save_model(outcome: Outcome[_Savable], config: Mapping[str, Any]) -> None:
    """Write a run's model to its ``model-path`` and log the path."""
    path = Path(str(config["model-path"])).absolute()
    outcome.result.save(path)
    if config.get("schema"):
        copy_schema(Path(str(config["schema"])), path)
    logging.getLogger("flwr").info("fedneighbors: the model is in %s", path)


def table_apps(
    method: str,
    coordinate: Callable[[Config, Privacy | None], Coordinator[_Model]],
    make_party: Callable[[dict[str, Any], Config], Party],
    make_private: Callable[[dict[str, Any], Config], Party] | None = None,
    *,
    save: Callable[[Outcome[Any], Config], None] = save_model,
    keep_missing: bool = False,
) -> "tuple[Any, Any, BuildParty]":
    """Return the Flower apps of a method, server first, and its builder.

    Parameters
    ----------
    method : str
        Name of the method; a party's model is ``METHOD.model`` in its folder of models.
    coordinate : callable
        Function that creates the coordinator from the run's configuration and the privacy settings,
        which are None without a budget.
    make_party : callable
        Function that creates a party from the arguments of its table and the node's configuration.
    make_private : callable
        The same for a node that sets ``epsilon``; the arguments include ``privacy`` and the ledger.
        If None, ``make_party`` reads that setting.
    save : callable
        Function that saves the outcome of the run.
    keep_missing : bool
        Leave missing cells of numeric columns NaN.
    """

    def coordinator(config: Config) -> Coordinator[_Model]:
        check_folder(typed_value(config, "model-path", str), "model-path")
        privacy = privacy_from(config)
        if privacy is not None:
            _check_masked(privacy, config)
        if privacy is not None or config.get("schema"):
            return coordinate(config, privacy)
        next(coordinate(config, None))  # raises for an invalid setting before any message
        return _agree_and_train(coordinate(config, None), config)

    def party(node: Config, account: AccountOf = party_account) -> Party:
        privacy = _party_privacy(node) if make_private else None
        table, draft = party_table(node, method, keep_missing=keep_missing)
        if make_private is None or privacy is None:
            limited = _limit_requests(make_party(table, node), node, run=table["run"])
            path = None if node.get("schema") else table["model_path"].with_suffix(SCHEMA_SUFFIX)
            return AgreeingParty(limited, draft=draft, path=path, run=table["run"])
        return make_private({**table, "privacy": privacy, **account(node)}, node)

    return server_app(coordinator, save), client_app(party), party


def _agree_and_train(training: Coordinator[_Model], config: Config) -> Coordinator[_Model]:
    """Train after an agreement on the schema; write the schema."""
    schema = yield from agree_on_schema()
    model: _Model = yield from training
    path = Path(str(config["model-path"])).with_suffix(SCHEMA_SUFFIX)
    replace_file(path, schema.to_toml().encode("utf-8"))
    return model


def _draft_schema(table: Table, node: Mapping[str, Any], *, keep_missing: bool) -> Schema:
    """Return the schema of a node's own rows.

    With an identity key it contains no number of a row.
    """
    label = str(node.get("label", "target"))
    features = table.without([label])
    draft = Schema.draft(features, with_ranges=False, keep_missing=keep_missing)
    columns = draft.columns
    if node.get("identity-key") and not keep_missing:
        columns = tuple(_without_fill(column, features) for column in columns)
    return replace(draft, columns=columns, label=label)


def _without_fill(column: Column, table: Table) -> Column:
    if isinstance(column, CategoricalColumn):
        return column
    if missing_cells(table.columns[column.name]).any():
        raise Refused(
            "a column has gaps, and a party with a key sends no fill value: declare a schema",
            column.name,
        )
    return replace(column, missing="drop")


def _limit_requests(party: Party, node: Config, *, run: str) -> Party:
    """Return a party that answers a run about one table.

    It remembers the table after restarts. Under a budget the ledger limits requests.
    """
    if node.get("epsilon"):
        return party
    folder = Path(node_value(node, "model-folder"), "answers")
    return SingleUseParty(party, store=FolderStore(folder), run=run)


def typed_value(config: Mapping[str, Any], key: str, *kinds: type) -> Any:
    """Return a run's configuration value, converting integers to float if needed.

    Raises
    ------
    ValueError
        If it is absent or has another type; a boolean is not an integer here.
    """
    value = config.get(key)
    if type(value) is int and float in kinds and int not in kinds:
        return float(value)
    if type(value) not in kinds:
        expected = " or ".join(kind.__name__ for kind in kinds)
        raise ValueError(f"expected {key} of the run configuration to be {expected}, got {value!r}")
    return value


def typed_or_none(config: Mapping[str, Any], key: str, word: str, *kinds: type) -> Any:
    """Return None for the given word, otherwise the value of :func:`typed_value`.

    Raises
    ------
    ValueError
        As for :func:`typed_value`; the message also names the word.
    """
    if config.get(key) == word:
        return None
    try:
        return typed_value(config, key, *kinds)
    except ValueError as error:
        raise ValueError(f"{error}, or {word!r}") from None


def reserved_classes(config: Mapping[str, Any]) -> tuple[Label, ...]:
    """Return the labels that a run's configuration lists in ``classes``.

    Raises
    ------
    ValueError
        If it is not a JSON list of labels.
    """
    text = typed_value(config, "classes", str)
    try:
        labels = json.loads(text)
    except json.JSONDecodeError as error:
        raise ValueError(f"expected classes as a JSON list such as [0, 1], got {text!r}") from error
    if not isinstance(labels, list) or any(type(x) not in (str, int, float, bool) for x in labels):
        raise ValueError(f"expected classes as a JSON list of labels, got {text!r}")
    return tuple(labels)


def declared_rows(config: Mapping[str, Any]) -> dict[str, int]:
    """Return the parties' numbers of rows in ``declared-rows``.

    Raises
    ------
    ValueError
        If it is not a JSON object of numbers by party.
    """
    text = config.get("declared-rows", "")
    try:
        rows = json.loads(text or "{}")
    except (json.JSONDecodeError, TypeError) as error:
        raise ValueError(
            f'expected declared-rows as a JSON object such as {{"north": 500}}, got {text!r}'
        ) from error
    if not isinstance(rows, dict) or any(type(n) is not int or n < 0 for n in rows.values()):
        raise ValueError(f"expected declared-rows with numbers of rows by party, got {text!r}")
    return rows


def _check_masked(privacy: Privacy, config: Mapping[str, Any]) -> None:
    """Raise if noise shares would be added up without masks."""
    if privacy.mechanism == "central" and not config.get("secure-aggregation"):
        raise ValueError(
            "mechanism 'central' adds noise shares that protect a masked sum only; set "
            "secure-aggregation=true, or mechanism='local'"
        )


def party_table(
    node: Mapping[str, Any], method: str, *, keep_missing: bool = False
) -> tuple[dict[str, Any], Schema]:
    """Read a party's table from the file of its node.

    Parameters
    ----------
    node : mapping
        The node's configuration. ``data`` and ``model-folder`` are required. ``schema`` is the
        path of a schema; without it columns come from the schema that the parties of this run have
        agreed on, and ``label`` is ``target`` by default.
    method : str
        Name of the method.
    keep_missing : bool
        Leave missing cells of numeric columns NaN, if there is no schema.

    Returns
    -------
    arguments : dict
        ``name``, ``x``, ``y``, ``feature_names``, ``label_name``, ``model_path``, ``run`` and
        ``schema_path``.
    schema : Schema
        The declared schema, or the draft.

    Raises
    ------
    Refused
        If a key is missing, or the file cannot be used.
    """
    data = node_value(node, "data")
    folder = Path(node_value(node, "model-folder"))
    if not folder.is_dir():
        raise Refused("its model-folder does not exist", "model-folder")
    model, run = folder / f"{method}.model", str(node.get(RUN_KEY, ""))
    with _file_errors():
        if node.get("schema"):
            path = Path(str(node["schema"]))
            own = schema = Schema.load(path)
            rows: EncodedRows | Dataset = read_rows(data, schema)
        else:
            path = pending_path(model.with_suffix(SCHEMA_SUFFIX), run)
            table = read_columns(data, nominal=[str(node.get("label", "target"))])
            own = _draft_schema(table, node, keep_missing=keep_missing)
            schema = Schema.load(path) if path.exists() else own
            rows = dataset_from_table(table, own.label, name=method, schema=schema)
    return {
        "name": str(node.get("party-name", "this party")),
        "x": rows.x,
        "y": rows.y,
        "feature_names": schema.feature_names,
        "label_name": schema.label,
        "model_path": model,
        "run": run,
        "schema_path": path if path.exists() else None,
    }, own


def party_account(node: Mapping[str, Any]) -> dict[str, Any]:
    """Return the ledger, data set and user that a node configures.

    Parameters
    ----------
    node : mapping
        The node's configuration. ``ledger`` and ``dataset`` are required; ``ledger-user`` is
        ``coordinator`` by default; ``ledger-head`` is the optional head file of the ledger. The
        ledger's owner must be the ``party-name``, if one is given.

    Returns
    -------
    dict
        ``ledger``, ``dataset`` and ``user``.

    Raises
    ------
    Refused
        If a key is missing, or the ledger does not exist or cannot be used.
    """
    from fedneighbors.privacy.ledger._ledger import Ledger

    path = node_value(node, "ledger")
    try:
        party = node.get("party-name")
        ledger = Ledger(path, party and str(party), must_exist=True, head=node.get("ledger-head"))
    except LedgerError as error:
        log.error("the ledger cannot be used: %s", error)
        raise Refused("its ledger cannot be used") from error
    return {
        "ledger": ledger,
        "dataset": node_value(node, "dataset"),
        "user": str(node.get("ledger-user", "coordinator")),
    }


def _party_privacy(node: Mapping[str, Any]) -> Privacy | None:
    """Return the privacy terms of a node; None without ``epsilon``."""
    with _file_errors():
        try:
            return privacy_from(node)
        except DataError:
            raise
        except (ValueError, TypeError) as error:
            log.error("invalid privacy terms: %s", error)
            raise Refused("its privacy terms are invalid") from error


@contextmanager
def _file_errors() -> Iterator[None]:
    """Convert errors of a node's files to refusals without file names."""
    try:
        yield
    except MissingDataError as error:
        raise Refused("its data or schema file does not exist") from error
    except MissingExtraError as error:
        raise Refused("a package is not installed", error.package) from error
    except DataError as error:
        log.error("a file cannot be used: %s", error)
        raise Refused("its data or schema file cannot be used; its log says why") from error


def node_value(node: Mapping[str, Any], key: str) -> str:
    """Return a value of a node's configuration as text.

    Raises
    ------
    Refused
        If it is absent or empty.
    """
    if not node.get(key):
        raise Refused("a key is not set in the configuration of the node", key)
    return str(node[key])
