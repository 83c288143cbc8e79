"""Collections, providers and budgets of a broker, as its users may see them."""

import math
from typing import Any

from fedneighbors.datasets._schema import Schema
from fedneighbors.datasets._schema_columns import CategoricalColumn, NumericColumn
from fedneighbors.service._broker import Broker, BrokerCollection
from fedneighbors.service._operations import describe_cost
from fedneighbors.service._source_config import KINDS
from fedneighbors.service._state import ApiUser

Listing = dict[str, dict[str, Any]]


def list_collections(broker: Broker, user: ApiUser) -> Listing:
    """Return the collections that a user may search or count, by name."""
    return {
        name: _describe_collection(broker, collection, user)
        for name, collection in broker.collections.items()
        if user.may("count", name)
    }


def _describe_collection(
    broker: Broker, collection: BrokerCollection, user: ApiUser
) -> dict[str, Any]:
    """Return the description of a collection."""
    links = broker.registry.links
    offered = [links[one].collections for one in collection.providers if one in links]
    latest, rows = collection.find_offers(broker.registry), collection.rows
    return {
        "name": collection.name,
        "metric": collection.metric,
        "objects": KINDS[collection.metric],
        "n_objects": sum(o[collection.name].n_objects for o in offered if collection.name in o),
        "algorithm": collection.settings.algorithm,
        "private": collection.settings.privacy is not None,
        "trust": collection.trust,
        "providers": list(collection.providers),
        "connected": sorted(name for name in collection.providers if name in links),
        "filters": collection.filters,
        "n_columns": collection.n_columns or None,
        "grants": {n: one.grant_for(user.name, user.groups) for n, one in latest.items()},
        "areas": {name: one.area for name, one in latest.items() if one.area},
        "distance_steps": collection.shown_steps(user.name, user.groups, broker.registry),
        "columns": None if rows is None else _describe_columns(rows),
        "required": [one.name for one in rows.columns if one.missing == "drop"] if rows else [],
        "classes": None if rows is None else list(rows.classes) or None,
    }


def _describe_columns(schema: Schema) -> dict[str, Any]:
    """Return the range or the categories of each column, or "set".

    An end of a range is None if there is none.
    """
    return {
        column.name: [end if math.isfinite(end) else None for end in (column.low, column.high)]
        if isinstance(column, NumericColumn)
        else list(column.categories)
        if isinstance(column, CategoricalColumn)
        else "set"
        for column in schema.columns
    }


def list_providers(broker: Broker, user: ApiUser) -> Listing:
    """Return the enrolled providers of a user's collections, by name."""
    links = broker.registry.links
    return {
        one.name: {
            "name": one.name,
            "revoked": one.is_revoked,
            "connected_since": links[one.name].since if one.name in links else None,
            "collections": sorted(
                name
                for name in (links[one.name].collections if one.name in links else ())
                if user.may("count", name)
            ),
        }
        for one in broker.state.providers()
        if any(
            one.name in found.providers and user.may("count", name)
            for name, found in broker.collections.items()
        )
    }


def list_budgets(broker: Broker, user: ApiUser) -> Listing:
    """Return the privacy budgets of a user's collections.

    Each limits what queries reveal to a provider about the objects of the others.
    """
    return {
        f"{name}/{state.dataset}": {
            "collection": name,
            "provider": state.dataset,
            "allowed": describe_cost(state.allowed),
            "spent": describe_cost(state.spent),
            "left": describe_cost(state.left),
        }
        for name, collection in broker.collections.items()
        if collection.ledger is not None and user.may("count", name)
        for state in collection.ledger.budgets()
        if state.dataset in collection.providers and not state.user
    }
