"""Classifiers of three providers that vote, and their files."""

import numpy as np
import pandas as pd
import skops.io
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.compose import make_column_transformer
from sklearn.ensemble import RandomForestClassifier
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder

from fedneighbors.datasets import CategoricalColumn, NumericColumn, Schema
from fedneighbors.service._config import OfferSection
from fedneighbors.service._offers import OfferedObjects

CLASSES = ("home", "ward", "icu")
SCHEMA = Schema(
    (
        NumericColumn("age", 0, 110, missing="keep"),
        NumericColumn("lactate", missing="keep"),
        CategoricalColumn("sex", ("f", "m", "x"), missing="keep"),
    ),
    "outcome",
    CLASSES,
)
ROWS = [
    {"age": 64, "lactate": 2.1, "sex": "f"},
    {"age": 12.5, "sex": "m"},
    {"lactate": 9.75, "sex": None},
    {},
]


def make_table(n, seed):
    rng = np.random.default_rng(seed)
    table = pd.DataFrame(
        {
            "age": rng.integers(0, 100, n).astype(float),
            "lactate": rng.gamma(2.0, 1.5, n).round(2),
            "sex": rng.choice(["f", "m", "x"], n),
        }
    )
    risk = table["age"] / 50 + table["lactate"] / 3 + rng.normal(0, 0.4, n)
    return table.assign(outcome=np.array(CLASSES)[np.digitize(risk, [1.4, 2.6])])


def fit_frame(table):
    """Return a pipeline of a data frame, as users fit it."""
    columns = make_column_transformer(
        (SimpleImputer(), ["age", "lactate"]),
        (OneHotEncoder(handle_unknown="ignore"), ["sex"]),
    )
    model = make_pipeline(columns, LogisticRegression(max_iter=2000))
    return model.fit(table[["age", "lactate", "sex"]], table["outcome"])


def fit_features(table):
    """Return a forest of the features of the schema."""
    rows = SCHEMA.encode(table)
    return RandomForestClassifier(8, random_state=0).fit(rows.x, rows.y)


def fit_two(table):
    """Return a model that knows two of the three classes."""
    return fit_frame(table[table["outcome"] != "icu"])


FITS = {"north": fit_frame, "south": fit_features, "west": fit_two}
OWNERS = list(FITS)
SECTION = {"metric": "votes", "schema": "votes.toml"}


def fit_models():
    """Return a fitted model of each provider."""
    return {name: fit(make_table(200, seed)) for seed, (name, fit) in enumerate(FITS.items())}


def write_models(folder, models):
    """Write the schema, and files of models and held-out rows."""
    (folder / "votes.toml").write_text(SCHEMA.to_toml(), encoding="utf-8")
    for seed, (name, model) in enumerate(models.items(), start=10):
        skops.io.dump(model, folder / f"{name}.skops")
        make_table(120, seed).to_csv(folder / f"{name}.csv", index=False)


def make_section(owner, policy=None, **source):
    policy = policy or {"level": "probabilities"}
    files = {"kind": "model", "file": f"{owner}.skops", "held_out": f"{owner}.csv"}
    files["trusted"] = ["sklearn.tree._tree.Tree"] if owner == "south" else []
    return OfferSection.model_validate({**SECTION, "source": {**files, **source}, "policy": policy})


def read(folder, owner, policy=None, *, log=None, name="outcomes", **source):
    section = make_section(owner, policy, **source)
    return OfferedObjects.read(owner, name, section, folder, secret=b"s", log=log)


class Odd(ClassifierMixin, BaseEstimator):
    """A classifier that returns what the test states."""

    def __init__(self, found=None, classes_=CLASSES):
        self.found, self.classes_ = found, classes_

    def predict_proba(self, table):
        if isinstance(self.found, Exception):
            raise self.found
        return np.tile(self.found, (len(table), 1))
