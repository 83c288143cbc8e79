"""``fedneighbors predict``: predict the rows of a file with a saved model."""

from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedneighbors.cli._console import delay_interrupt, echo, print_warning
from fedneighbors.cli._files import check_output, text_options
from fedneighbors.errors import DataError, ModelFileError

if TYPE_CHECKING:
    from fedneighbors._typing import Array
    from fedneighbors.datasets._text_format import TextFormat
    from fedneighbors.records import RunRecord

    Model = Any  # a fitted estimator of any method or baseline


_SYNTHESIZER = b"FNSYNTH"
_FLYNN = "methods.flynn.estimator:FlyNNClassifier"
_READERS = {
    b"FNPNN": "methods.fedpnn.estimator:FedPNNClassifier",  # exact and private models
    b"FNKNPER": "methods.knnper.estimator:KNNPerClassifier",
    b"FNKNNUM": "methods.knnper.estimator:KNNPerRegressor",
    b"FNNEIGH": "methods.fedknn._classification:load_neighbors",
    **dict.fromkeys((b"FNKNRIV", b"FNBOOST", b"FNDISCR"), "baselines._base:load"),
}
"""Class or function that reads a model file, by its first bytes."""


ModelFileOption = Annotated[
    Path,
    typer.Option(
        help="Model file, such as model.fnn, model.fnp or model.fnk, or a folder with one model."
    ),
]
RowsOption = Annotated[
    Path, typer.Option(help="CSV, Parquet, ARFF or .npz file with the rows to predict.")
]


@text_options
def predict(
    model: ModelFileOption,
    data: RowsOption,
    out: Annotated[Path, typer.Option(help="Output file (CSV).")] = Path("predictions.csv"),
    proba: Annotated[bool, typer.Option("--proba", help="Add class probabilities.")] = False,
    schema: Annotated[
        Path | None,
        typer.Option(
            help="Schema of the training data; by default MODEL.schema.toml or schema.toml next to "
            "the model."
        ),
    ] = None,
    party: Annotated[
        str | None,
        typer.Option(
            help="Party whose memory a personalized model uses; not needed for a single party."
        ),
    ] = None,
    party_column: Annotated[
        str | None,
        typer.Option(help="Column with the party of each row, for personalized models."),
    ] = None,
    identifier: Annotated[
        str | None,
        typer.Option("--id", help="Column that identifies a row: copied to the predictions."),
    ] = None,
    label: Annotated[
        str | None,
        typer.Option(help="Column with the true label: the predictions are scored against it."),
    ] = None,
    *,
    text_format: "TextFormat",
) -> None:
    """Predict the class or number of each row of a file.

    With --label, prints the scores and writes them to a record next to --out.
    """
    roles = _list_roles(identifier, label, party_column, party)
    if label is not None:
        check_output(out.with_suffix(".jsonl"), data)  # the record of the scores
    model = _find_model(model)
    estimator = _load(model)
    if proba and not hasattr(estimator, "classes_"):
        raise typer.BadParameter(
            "this model is for regression, without probabilities: omit --proba"
        )
    source = _Source(data, schema or _schema_path(model), roles, label, text_format)
    others = source.read_others(by_row=hasattr(estimator, "feature_names_in_"))
    rows = source.read_rows(estimator)
    owners = _parties_argument(estimator, party, others.get(party_column or ""), len(rows))
    is_scored = label is not None and hasattr(estimator, "classes_")
    columns = _predict(estimator, rows, proba=proba or is_scored, **owners)
    record = None
    if label is not None:
        record = _score(estimator, others[label], columns, (model.name, data.name, label))
    if not proba:
        columns = {name: cells for name, cells in columns.items() if name.startswith("prediction")}
    summary = [*_summarize(estimator, columns)]
    if identifier in columns:
        raise typer.BadParameter(f"{identifier!r} is a column of the predictions: rename --id")
    if identifier is not None:
        columns = {identifier: others[identifier], **columns}
    _write(out, columns, summary, record)


def _list_roles(
    identifier: str | None, label: str | None, party_column: str | None, party: str | None
) -> tuple[str, ...]:
    """Return the columns without features; raise if options conflict."""
    if party is not None and party_column is not None:
        raise typer.BadParameter("--party and --party-column are mutually exclusive")
    roles = [name for name in (identifier, label, party_column) if name is not None]
    if len(set(roles)) < len(roles):
        raise typer.BadParameter("--id, --label and --party-column must be different columns")
    return tuple(roles)


def _score(
    estimator: "Model",
    truth: list[str | None],
    columns: dict[str, list[Any]],
    names: tuple[str, str, str],
) -> "RunRecord":
    """Return the record of the scores.

    ``names`` are those of model, data and label.
    """
    from fedneighbors.cli._scores import score_predictions
    from fedneighbors.records import RunRecord, environment

    parameters = dict(zip(("model", "data", "label"), names, strict=True))
    scores = score_predictions(estimator, truth, columns)
    return RunRecord("predict", parameters, tables=scores, environment=environment())


def _write(
    out: Path, columns: dict[str, list[Any]], summary: list[str], record: "RunRecord | None"
) -> None:
    """Write predictions and record, and print summary and scores."""
    from fedneighbors.cli._results import print_tables
    from fedneighbors.datasets._text_tables import serialize_csv
    from fedneighbors.records import replace_file, write_record

    out.parent.mkdir(parents=True, exist_ok=True)
    for sentence in summary:
        echo(sentence)
    with delay_interrupt():
        replace_file(out, serialize_csv(columns))
        echo(f"predictions {out}", "green")
        if record is not None:
            print_tables(record)
            write_record(record, out.with_suffix(".jsonl"))
            echo(f"record  {out.with_suffix('.jsonl')}", "green")


@dataclass(frozen=True)
class _Source:
    """File to predict, schema of the training data, and columns that are no features."""

    path: Path
    schema: Path | None
    roles: tuple[str, ...]
    label: str | None
    text_format: "TextFormat"

    def read_others(self, *, by_row: bool) -> dict[str, list[str | None]]:
        """Return the cells of the other columns as text, None if missing.

        ``by_row`` is true if a schema reads the rows of a model with column names.
        """
        from fedneighbors.datasets._arrays import is_arrays
        from fedneighbors.datasets._cells import read_cells
        from fedneighbors.datasets._reading import has_decimal_commas, read_columns
        from fedneighbors.datasets._schema_columns import cell_text
        from fedneighbors.datasets._text_format import point_number

        names, text_format = list(self.roles), self.text_format
        if not names:
            return {}
        if is_arrays(self.path):
            raise typer.BadParameter(
                f"{self.path} has arrays without named columns: omit --id and --label"
            )
        if by_row and self.schema is not None:
            # the rows of a schema are lines, also where a quoted cell has a line break
            cells, _ = read_cells(self.path, names, text_format)
            texts = {name: list(map(cell_text, cells[name])) for name in names}
            missing = {None, *text_format.missing}
            others = {name: [None if t in missing else t for t in texts[name]] for name in names}
            if self.label is not None and has_decimal_commas(self.path, text_format):
                others[self.label] = [cell and point_number(cell) for cell in others[self.label]]
            return others
        table = read_columns(self.path, nominal=names, text_format=text_format)
        return {name: table.columns[name].tolist() for name in names}

    def read_rows(self, estimator: "Model") -> "Array":
        """Read the features of the model.

        Columns are read by position if the model has no column names.
        """
        from sklearn.utils import get_tags

        from fedneighbors.datasets._arrays import is_arrays
        from fedneighbors.datasets._reading import read_features

        if not hasattr(estimator, "n_features_in_"):
            raise typer.BadParameter(
                "this model compares objects such as strings or graphs, not rows of numbers: call "
                "its predict in Python"
            )
        keep_missing = get_tags(estimator).input_tags.allow_nan
        names = getattr(estimator, "feature_names_in_", None)
        if is_arrays(self.path):
            return self._read_arrays(estimator, keep_missing=keep_missing)
        columns = None if names is None else [str(name) for name in names]
        if self.schema is not None and (columns or self._has_features(estimator.n_features_in_)):
            return self._read_by_schema(self.schema, columns)
        if columns is None:
            columns = self._list_columns(estimator.n_features_in_)
        elif encoded := [name for name in columns if "=" in name]:
            print_warning(
                f"the model has columns such as {encoded[0]!r} and there is no schema.toml next to "
                "it; copy it from the training folder, or give it with --schema"
            )
        return read_features(
            self.path, columns, keep_missing=keep_missing, text_format=self.text_format
        )

    def _has_features(self, n_features: int) -> bool:
        """Return whether the schema makes this number of features."""
        from fedneighbors.datasets._schema import Schema

        return self.schema is not None and len(Schema.load(self.schema).feature_names) == n_features

    def _read_arrays(self, estimator: "Model", *, keep_missing: bool) -> "Array":
        """Read arrays; rows of a network of images get its shape."""
        from math import prod

        from fedneighbors.datasets._arrays import read_array_rows

        x = read_array_rows(self.path, keep_missing=keep_missing)
        shape = getattr(estimator, "_row_shape", None) or (estimator.n_features_in_,)
        if x.shape[1] != prod(shape):
            raise DataError(
                f"the model was trained on {prod(shape)} features, {self.path} has {x.shape[1]}"
            )
        return x.reshape(-1, *shape)

    def _read_by_schema(self, schema: Path, names: list[str] | None) -> "Array":
        """Read rows by a schema with the features of the model."""
        from fedneighbors.datasets._reading import read_rows
        from fedneighbors.datasets._schema import Schema
        from fedneighbors.datasets._table import join_names

        rules = Schema.load(schema)
        if names is not None and rules.feature_names != tuple(names):
            raise DataError(
                f"{schema} has features {join_names(rules.feature_names)}, but the model has "
                f"{join_names(names)}; give the schema of its training data with --schema"
            )
        rows = read_rows(self.path, rules, labelled=False, text_format=self.text_format)
        if not len(rows.kept):
            raise DataError(f"{self.path} has no rows; expected a header and data below it")
        rules.check_complete(rows)
        for sentence in rules.notes(rows):
            print_warning(sentence)
        return rows.x

    def _list_columns(self, n_features: int) -> list[str]:
        """Return the names of all columns that have no other role."""
        from fedneighbors.datasets._reading import read_columns

        table = read_columns(self.path, text_format=self.text_format)
        columns = [name for name in table.names if name not in self.roles]
        if len(columns) != n_features:
            raise DataError(
                f"the model was trained on {n_features} columns without names, "
                f"{self.path} has {len(columns)}; give exactly these columns, in the same order"
            )
        return columns


def _find_model(path: Path) -> Path:
    """Return a model file, or the only one of a folder."""
    if not path.is_dir():
        return path
    models = sorted(path.glob("*.fn?"))
    if len(models) != 1:
        names = ", ".join(each.name for each in models) or "none"
        raise typer.BadParameter(
            f"expected one model file in the folder {path}, found {names}; give the file"
        )
    return models[0]


def _load(path: Path) -> "Model":
    """Return the estimator of a model file of any method."""
    from fedneighbors.tabular._model_file import read_model_file

    raw = read_model_file(path)
    if raw.startswith(_SYNTHESIZER):
        raise ModelFileError(
            f"{path} is a synthesizer, which generates rows and cannot classify; use it with "
            "fedneighbors synthesize --model"
        )
    home = next((home for magic, home in _READERS.items() if raw.startswith(magic)), _FLYNN)
    module, name = home.split(":")
    reader = getattr(import_module(f"fedneighbors.{module}"), name)
    model: Model = getattr(reader, "load", reader)(path)
    return model


def _parties_argument(
    estimator: "Model", party: str | None, cells: list[Any] | None, n_rows: int
) -> dict[str, Any]:
    """Return the ``parties`` argument of predict; empty for shared models."""
    from fedneighbors.datasets._table import join_names

    clients = getattr(estimator, "clients_", None)
    if clients is None:
        if party is not None or cells is not None:
            raise typer.BadParameter("this model is the same for all parties: omit the party")
        return {}
    if party is not None and party not in clients:
        raise typer.BadParameter(
            f"the model has no party {party!r}; it has {join_names(map(str, clients), most=10)}; "
            "omit --party for predictions of the shared model"
        )
    owners = cells if party is None else [party] * n_rows
    if owners is None and len(clients) != 1:
        print_warning(
            f"the model has {len(clients)} parties and none is given with --party or "
            "--party-column: rows get predictions of the shared model"
        )
    unknown = sorted(str(name) for name in set(owners or ()) - set(clients))
    if unknown:
        print_warning(
            f"parties {join_names(unknown, most=5)} are not in the model, and get predictions of "
            "the shared model"
        )
    return {"parties": owners}


def _predict(
    estimator: "Model", rows: "Array", *, proba: bool, **owners: Any
) -> dict[str, list[Any]]:
    """Return the columns of the prediction file.

    Several outputs are numbered from 1.
    """
    import warnings

    with warnings.catch_warnings():  # rows were read by column name, which an array lacks
        warnings.filterwarnings("ignore", "X does not have valid feature names", UserWarning)
        warnings.filterwarnings(
            "ignore", "(parties= is missing|clients .* are unknown)", UserWarning
        )
        predicted = estimator.predict(rows, **owners)
        if predicted.ndim == 2 and predicted.shape[1] > 1:
            return {f"prediction {k}": y.tolist() for k, y in enumerate(predicted.T, start=1)}
        columns: dict[str, list[Any]] = {"prediction": predicted.ravel().tolist()}
        if proba:
            table = estimator.predict_proba(rows, **owners)
            for label, values in zip(estimator.classes_.tolist(), table.T, strict=True):
                columns[f"probability of {label}"] = values.tolist()
    return columns


def _summarize(estimator: "Model", columns: dict[str, list[Any]]) -> Iterator[str]:
    """Yield the number of rows per class, or the range of numbers."""
    classes = getattr(estimator, "classes_", None)
    if classes is not None:
        for label in classes.tolist():
            yield f"{columns['prediction'].count(label):>8} rows: {label}"
        return
    for name, values in columns.items():
        yield f"{len(values):>8} rows: {name} from {min(values):.6g} to {max(values):.6g}"


def _schema_path(model: Path) -> Path | None:
    """Return the path of the schema of a model, if any."""
    paths = model.with_suffix(".schema.toml"), model.with_name("schema.toml")
    return next((path for path in paths if path.is_file()), None)
