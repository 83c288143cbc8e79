"""``fedneighbors predict``: predict the rows of a file with a saved model."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedneighbors.cli._files import text_options

if TYPE_CHECKING:
    import numpy.typing as npt

    from fedneighbors.baselines._base import Baseline
    from fedneighbors.datasets._text_format import TextFormat
    from fedneighbors.methods.fedpnn.estimator import FedPNNClassifier
    from fedneighbors.methods.flynn.estimator import FlyNNClassifier
    from fedneighbors.methods.knnper.estimator import KNNPerClassifier, KNNPerRegressor

    Model = FedPNNClassifier | FlyNNClassifier | KNNPerClassifier | KNNPerRegressor | Baseline


_FEDPNN = b"FNPNN"  # for exact and private models
_KNNPER = b"FNKNPER"
_KNNPER_NUMBERS = b"FNKNNUM"
_BASELINE = b"FNKNRIV"
_SYNTHESIZER = b"FNSYNTH"


@text_options
def predict(
    model: Annotated[
        Path, typer.Option(help="Model file, such as model.fnn, model.fnp or model.fnk.")
    ],
    data: Annotated[
        Path, typer.Option(help="CSV, Parquet, ARFF or .npz file with the rows to predict.")
    ],
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
    from fedneighbors.cli._console import delay_interrupt, echo
    from fedneighbors.cli._results import print_tables
    from fedneighbors.cli._scores import score_predictions
    from fedneighbors.datasets._text_tables import serialize_csv
    from fedneighbors.records import RunRecord, environment, replace_file, write_record

    if party is not None and party_column is not None:
        raise typer.BadParameter("--party and --party-column are mutually exclusive")
    estimator = _load(model)
    if proba and not hasattr(estimator, "classes_"):
        raise typer.BadParameter(
            "this model is for regression, without probabilities: omit --proba"
        )
    schema_path = schema or _schema_path(model)
    roles = [name for name in (identifier, label, party_column) if name is not None]
    if len(set(roles)) < len(roles):
        raise typer.BadParameter("--id, --label and --party-column must be different columns")
    by_row = schema_path is not None and hasattr(estimator, "feature_names_in_")
    others = _read_others(data, roles, by_row=by_row, text_format=text_format)
    rows = _read_rows(data, estimator, schema_path, exclude=roles, text_format=text_format)
    owners = _parties_argument(estimator, party, others.get(party_column or ""), len(rows))
    is_scored = label is not None and hasattr(estimator, "classes_")
    columns = _predict(estimator, rows, proba=proba or is_scored, **owners)
    scores = () if label is None else score_predictions(estimator, others[label], columns)
    if not proba:
        columns = {name: cells for name, cells in columns.items() if name.startswith("prediction")}
    summary = [*_summarize(estimator, columns)]
    if identifier in columns:
        raise typer.BadParameter(f"{identifier!r} is a column of the predictions: rename --id")
    if identifier is not None:
        columns = {identifier: others[identifier], **columns}
    out.parent.mkdir(parents=True, exist_ok=True)
    record = None
    if label is not None:
        parameters = {"model": model.name, "data": data.name, "label": label}
        record = RunRecord("predict", parameters, tables=scores, environment=environment())
    for sentence in summary:
        echo(sentence)
    with delay_interrupt():
        replace_file(out, serialize_csv(columns))
        echo(f"predictions {out}", "green")
        if record is not None:
            print_tables(record)
            write_record(record, out.with_suffix(".jsonl"))
            echo(f"record  {out.with_suffix('.jsonl')}", "green")


def _read_others(
    path: Path, names: list[str], *, by_row: bool, text_format: "TextFormat"
) -> dict[str, list[str | None]]:
    """Return the cells of named columns as text, None if missing."""
    from fedneighbors.datasets._arrays import is_arrays
    from fedneighbors.datasets._cells import read_cells
    from fedneighbors.datasets._reading import read_columns
    from fedneighbors.datasets._schema_columns import cell_text

    if not names:
        return {}
    if is_arrays(path):
        raise typer.BadParameter(f"{path} has arrays without named columns: omit --id and --label")
    if by_row:  # the rows of a schema are lines, also where a quoted cell has a line break
        cells, _ = read_cells(path, names, text_format)
        texts = {name: list(map(cell_text, cells[name])) for name in names}
        missing = {None, *text_format.missing}
        return {name: [None if t in missing else t for t in texts[name]] for name in names}
    table = read_columns(path, nominal=names, text_format=text_format)
    return {name: table.columns[name].tolist() for name in names}


def _load(path: Path) -> "Model":
    """Return the estimator of a model file of any method."""
    from fedneighbors.errors import ModelFileError
    from fedneighbors.methods.fedpnn.estimator import FedPNNClassifier
    from fedneighbors.methods.flynn.estimator import FlyNNClassifier
    from fedneighbors.methods.knnper.estimator import KNNPerClassifier, KNNPerRegressor
    from fedneighbors.tabular._model_file import read_model_file

    raw = read_model_file(path)
    if raw.startswith(_SYNTHESIZER):
        raise ModelFileError(
            f"{path} is a synthesizer, which generates rows and cannot classify; use it with "
            "fedneighbors synthesize --model"
        )
    if raw.startswith(_FEDPNN):
        return FedPNNClassifier.load(path)
    if raw.startswith(_KNNPER):
        return KNNPerClassifier.load(path)
    if raw.startswith(_KNNPER_NUMBERS):
        return KNNPerRegressor.load(path)
    if raw.startswith(_BASELINE):
        return _baseline(path)
    return FlyNNClassifier.load(path)


def _baseline(path: Path) -> "Model":
    """Load the baseline of a file, of any class."""
    from fedneighbors import baselines

    model: Model = baselines.load(path)
    return model


def _parties_argument(
    estimator: "Model", party: str | None, cells: list[Any] | None, n_rows: int
) -> dict[str, Any]:
    """Return the ``parties`` argument of predict; empty for shared models."""
    from fedneighbors.cli._console import print_warning

    clients = getattr(estimator, "clients_", None)
    if clients is None:
        if party is not None or cells is not None:
            raise typer.BadParameter("this model is the same for all parties: omit the party")
        return {}
    owners = cells if party is None else [party] * n_rows
    if owners is None and len(clients) != 1:
        print_warning(
            f"the model has {len(clients)} parties and none is given with --party or "
            "--party-column: rows get predictions of the shared network"
        )
    unknown = sorted(str(name) for name in set(owners or ()) - set(clients))
    if unknown:
        print_warning(
            f"parties {unknown[:5]} are not in the model and get predictions of the shared network"
        )
    return {"parties": owners}


def _predict(
    estimator: "Model", rows: "npt.NDArray[Any]", *, proba: bool, **owners: Any
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


def _read_rows(
    path: Path,
    estimator: "Model",
    schema: Path | None,
    *,
    exclude: list[str],
    text_format: "TextFormat",
) -> "npt.NDArray[Any]":
    """Read the features of the model.

    Columns are read by position if the model has no column names.
    """
    from sklearn.utils import get_tags

    from fedneighbors.cli._console import print_warning
    from fedneighbors.datasets._arrays import is_arrays, read_array_rows
    from fedneighbors.datasets._reading import read_columns, read_features, read_rows
    from fedneighbors.datasets._schema import Schema
    from fedneighbors.datasets._table import join_names
    from fedneighbors.errors import DataError

    keep_missing = get_tags(estimator).input_tags.allow_nan
    names = getattr(estimator, "feature_names_in_", None)
    if is_arrays(path):
        x = read_array_rows(path, keep_missing=keep_missing)
        if x.shape[1] != estimator.n_features_in_:
            raise DataError(
                f"the model was trained on {estimator.n_features_in_} features, {path} has "
                f"{x.shape[1]}"
            )
        return x
    if names is not None and schema is not None:
        rules = Schema.load(schema)
        if rules.feature_names != tuple(map(str, names)):
            raise DataError(
                f"{schema} has features {join_names(rules.feature_names)}, but the model has "
                f"{join_names(map(str, names))}; give the schema of its training data with --schema"
            )
        rows = read_rows(path, rules, labelled=False, text_format=text_format)
        rules.check_complete(rows)
        for sentence in rules.notes(rows):
            print_warning(sentence)
        return rows.x
    if names is not None:
        encoded = [str(name) for name in names if "=" in str(name)]
        if encoded:
            print_warning(
                f"the model has columns such as {encoded[0]!r} and there is no schema.toml next to "
                "it; copy it from the training folder, or give it with --schema"
            )
        return read_features(
            path,
            [str(name) for name in names],
            keep_missing=keep_missing,
            text_format=text_format,
        )
    table = read_columns(path, text_format=text_format)
    columns = [name for name in table.names if name not in exclude]
    if len(columns) != estimator.n_features_in_:
        raise DataError(
            f"the model was trained on {estimator.n_features_in_} columns without names, "
            f"{path} has {len(columns)}; give exactly these columns, in the same order"
        )
    return read_features(path, columns, keep_missing=keep_missing, text_format=text_format)
