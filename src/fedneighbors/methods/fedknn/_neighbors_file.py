"""Files of nearest-neighbour classifiers and regressors: settings, objects and targets."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np

from fedneighbors._typing import Array, Floats, Integers
from fedneighbors.datasets._schema import Schema
from fedneighbors.errors import ModelFileError
from fedneighbors.methods.fedknn._queries import decode_query, encode_query
from fedneighbors.tabular._model_file import ModelFile, convert_file_errors
from fedneighbors.tabular._ownership import column_names
from fedneighbors.tabular._schema import Label

NOT_STORED = {"privacy", "workers", "link", "deadline_s"}
"""Parameters that files omit: a budget cannot be copied, the others are those of a machine."""


@dataclass(frozen=True, eq=False)
class NeighborsFile(ModelFile):
    """A classifier or regressor with the objects of all parties.

    Vectors of a numeric metric and coded rows without sets are in ``rows``, other objects in
    ``objects``, as frames of queries. ``schema`` is the TOML text of a table's schema, or empty.
    Parameters without ``metric`` are those of a model whose metric is the schema.
    ``targets`` are positions among ``classes``, or numbers if there are no classes. ``ids`` is None
    for positions, ``weights`` for equal weights. ``center`` and ``scale`` are those of standardized
    columns, otherwise empty; ``rows`` are standardized.
    """

    magic: ClassVar[bytes] = b"FNNEIGH3"

    method: str
    parameters: Mapping[str, str | int | float | bool]
    feature_names: tuple[str, ...] | None
    schema: str
    rows: Floats | None
    objects: tuple[bytes, ...]
    parties: tuple[str, ...]
    owners: Integers
    ids: tuple[str | int, ...] | None
    classes: tuple[Label, ...]
    targets: Array
    weights: Floats | None
    center: Floats
    scale: Floats

    def __post_init__(self) -> None:
        n = len(self.objects) if self.rows is None else len(self.rows)
        is_flat = self.targets.ndim == 1 or (self.targets.ndim == 2 and not self.classes)
        if not is_flat or len(self.targets) != n or self.owners.shape != (n,):
            raise ValueError("objects, targets and owners differ in number")
        for codes, names in ((self.owners, self.parties), (self.targets, self.classes)):
            if names and not (
                codes.dtype.kind in "iu" and 0 <= codes.min() <= codes.max() < len(names)
            ):
                raise ValueError("an owner or a class is not among the names")
        if not np.isfinite(self.targets).all():
            raise ValueError("a target is not finite")
        columns, rows = self.feature_names, self.rows
        if columns is not None and (rows is None or len(columns) != rows.shape[-1]):
            raise ValueError("the numbers of column names and columns differ")
        n_units = 0 if rows is None or not self.parameters.get("standardize") else rows.shape[-1]
        if self.center.shape != (n_units,) or self.scale.shape != (n_units,):
            raise ValueError("the numbers of columns and of their units differ")
        if not (np.isfinite([self.center, self.scale]).all() and (self.scale > 0).all()):
            raise ValueError("a unit of a column is not a positive number")

    @classmethod
    def of(cls, fitted: Any) -> Self:
        """Return the file of a fitted classifier or regressor."""
        search = fitted.search_
        if fitted.privacy is not None:
            raise ValueError(
                "a model under privacy cannot be saved, since copies would spend its budget twice; "
                "fit again with a ledger file, or save the model without privacy"
            )
        if not isinstance(fitted.metric, str | Schema):
            raise ValueError(
                f"expected a metric by name or a schema in a saved model, got {fitted.metric!r}"
            )
        parameters = {
            name: _scalar(value)
            for name, value in fitted.get_params(deep=False).items()
            if name not in NOT_STORED and not isinstance(value, Schema)
        }
        schema = getattr(search._metric, "schema", None)
        owners = np.empty(search.n_objects_, np.int64)
        for code, rows in enumerate(search._rows_of.values()):
            owners[rows] = code
        is_coded = schema is not None and isinstance(search._objects, np.ndarray)
        is_table, ids = fitted._is_numeric or is_coded, search.ids_
        is_classifier = hasattr(fitted, "classes_")
        return cls(
            method=type(fitted).__name__,
            parameters=parameters,
            feature_names=column_names(fitted),
            schema="" if schema is None else schema.to_toml(),
            rows=search._objects if is_table else None,
            objects=() if is_table else tuple(map(encode_query, search._objects)),
            parties=tuple(search._rows_of),
            owners=owners,
            ids=None if ids == list(range(len(ids))) else tuple(map(_scalar, ids)),
            classes=tuple(fitted.classes_.tolist()) if is_classifier else (),
            targets=np.asarray(fitted._codes, np.int64) if is_classifier else fitted._targets,
            weights=fitted._weights,
            center=fitted._units[0],
            scale=fitted._units[1],
        )

    def restore(self, cls: Any, *, source: str) -> Any:
        """Return the fitted estimator of the file.

        Parameters
        ----------
        cls : class
            Class of the estimator.
        source : str
            The file, for errors.

        Raises
        ------
        ModelFileError
            If the file belongs to another class, or a value does not fit.
        """
        if self.method != cls.__name__:
            raise ModelFileError(
                f"{source} has a model of {self.method!r:.40}, not of {cls.__name__}; load it with "
                "that class"
            )
        with convert_file_errors(source):
            schema = Schema.from_toml(self.schema) if self.schema else None
            model = cls(**{"metric": schema, **self.parameters})
            names = self.feature_names
            model._check_settings()
            objects: Any = [decode_query(frame) for frame in self.objects]
            if schema is not None:
                # most models do not need this module and its dependencies
                from fedneighbors.methods.fedknn.metrics._mixed import CodedRows

                objects = CodedRows(schema, objects if self.rows is None else self.rows)
            elif self.rows is not None:
                objects, model.n_features_in_ = self.rows, self.rows.shape[1]
            if names is not None:
                model.feature_names_in_ = np.array(names, dtype=object)
            model._fit_weights(self.weights, self.targets)
            model._units = self.center, self.scale
            model._store_targets(
                np.array(self.classes)[self.targets] if self.classes else self.targets
            )
            parties = [self.parties[code] for code in self.owners.tolist()]
            model._fit_search(objects, parties, self.ids, None)
            return model


def _scalar(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else value
