"""Options and steps that all commands of ``fedneighbors run`` share, except for searches."""

import functools
import inspect
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import typer

from fedneighbors.cli._console import delay_interrupt, echo, progress_bar
from fedneighbors.cli._files import (
    DropOption,
    Files,
    IdOption,
    choose_files,
    text_options,
)
from fedneighbors.cli._privacyoptions import SchemaOption
from fedneighbors.cli._splits import (
    AlphaOption,
    ClassesOption,
    DataOption,
    FactorOption,
    LabelOption,
    OutOption,
    PartiesOption,
    PartitionOption,
    PartyColumnOption,
    SeedOption,
    Split,
    SplitData,
    SplitKind,
    TaskName,
    TestOption,
    read_and_split,
    write_manifest,
)

if TYPE_CHECKING:
    from fedneighbors._typing import Floats
    from fedneighbors.datasets._schema import Schema
    from fedneighbors.datasets._schema_columns import Column
    from fedneighbors.privacy import Privacy
    from fedneighbors.runs._figures import RunTable

_ENCODED_NOTE = (
    "Categories of nominal columns come from all rows of the data, including held-out ones, and "
    "were not agreed by the parties: they are treated as public here."
)
_FILLED_NOTE = (
    "Missing cells are filled with medians of the training rows of all parties, and categories of "
    "nominal columns come from all rows of the data, including held-out ones. The parties agreed "
    "on neither: both are treated as public here."
)


@dataclass(frozen=True)
class Training:
    """Arguments of a training over the parties of a table."""

    files: Files
    label: str
    party_column: str | None
    split: Split
    test_size: float
    out: Path
    schema: Path | None

    def run(
        self,
        train: Callable[..., tuple[Any, ...]],
        parameters: dict[str, Any],
        *,
        model_file: str,
        tables: Sequence[str],
        keep_missing: bool = False,
        task: TaskName = TaskName.CLASSIFICATION,
        **options: Any,
    ) -> None:
        """Train on the table; print and store the results.

        Parameters
        ----------
        train : callable
            The ``run`` of a method in :mod:`fedneighbors.runs`.
        parameters : dict
            Arguments of its estimator.
        model_file : str
            File name of the model.
        tables : sequence of str
            Names of the tables to print.
        keep_missing : bool
            The method accepts missing cells. Otherwise they are filled, with medians of the
            training rows unless there is a schema.
        task : TaskName
            Kind of the label.
        **options
            Other arguments of ``train``.
        """
        from fedneighbors.cli._results import print_and_save_model
        from fedneighbors.records._storage import lock_folder
        from fedneighbors.runs._figures import column_medians

        has_arrays = any(source.endswith(".npz") for source in self.files.sources.values())
        data_split = read_and_split(
            self.files,
            label=self.label,
            party_column=self.party_column,
            split=self.split,
            schema=self.schema,
            keep_missing=keep_missing or not has_arrays,
            has_classes=task is TaskName.CLASSIFICATION,
            private=parameters.get("privacy") is not None,
        )
        data, draft = data_split.table, None if self.schema else data_split.table.schema
        if data.schema is not None:
            self._check_schema_file()
        table = self._make_table(data_split, task)
        needs_fills = draft is not None and not keep_missing
        if draft is not None and needs_fills:
            fills = column_medians(table.x[table.split[0]])
            table = replace(table, fills=fills)
            data = replace(data, schema=_declare_fills(draft, fills))
        if parameters.get("privacy") is not None:
            parameters = parameters | {"privacy": _declare_features(parameters["privacy"])}
        with lock_folder(self.out):
            with progress_bar() as progress:
                model, record, *roles = train(
                    table, parameters=parameters, progress=progress, **options
                )
            needs_note = needs_fills or (draft is not None and bool(draft.nominal_names))
            note = (_FILLED_NOTE if needs_fills else _ENCODED_NOTE) if needs_note else ""
            with delay_interrupt():
                print_and_save_model(
                    model,
                    record,
                    data,
                    self.out / model_file,
                    source=data_split.source,
                    tables=tables,
                    note=note,
                )
                # exact counts would void the guarantee of a private model
                if parameters.get("privacy") is None:
                    self._write_manifest(data_split, roles)
            echo(f"Predict new rows: {_make_predict_command(model, self.out / model_file)}")

    def _check_schema_file(self) -> None:
        """Raise if a schema of no earlier run would be replaced."""
        file = self.out / "schema.toml"
        if file.exists() and not (self.out / "record.jsonl").exists():
            raise typer.BadParameter(
                f"{file} is not of an earlier run, and would be replaced; give another --out"
            )

    def _make_table(self, data_split: SplitData, task: TaskName) -> "RunTable":
        """Return the rows of all parties; targets of a regression are numbers."""
        from fedneighbors.comparison._table import convert_targets
        from fedneighbors.runs._figures import RunTable

        data = data_split.table
        return RunTable(
            data.x,
            convert_targets(data.y) if task is TaskName.REGRESSION else data.y,
            data_split.owners,
            data.feature_names,
            test_size=self.test_size,
            seed=self.split.seed,
            task=task.value,
        )

    def _write_manifest(self, data_split: SplitData, roles: list[Any]) -> None:
        """Write the manifest of the split, with the roles of its rows."""
        from fedneighbors.partition import describe

        manifest = data_split.manifest
        if roles:
            manifest = describe(
                data_split.owners,
                data_split.table.y,
                kind=manifest.kind,
                seed=manifest.seed,
                parameters=manifest.parameters,
                roles=roles[0],
                unseen=(),  # every client participates in training
            )
        write_manifest(manifest, self.out / "manifest.json")


def _make_predict_command(model: Any, path: Path) -> str:
    """Return the command that predicts new rows with a model."""
    party = ["--party", "NAME"] if hasattr(model, "clients_") else []
    return shlex.join(["fedneighbors", "predict", "--model", str(path), "--data", "FILE", *party])


def _declare_features(privacy: "Privacy") -> "Privacy":
    """Return the terms with a schema of features, which replace cells."""
    from fedneighbors.datasets._schema_columns import NumericColumn

    schema = privacy.schema
    if schema is None:
        return privacy
    columns: list[Column] = []
    for column in schema.columns:
        parts = zip(column.feature_names, column.bounds, strict=True)
        is_number = isinstance(column, NumericColumn)
        columns += [column] if is_number else [NumericColumn(name, *pair) for name, pair in parts]
    return replace(privacy, schema=replace(schema, columns=tuple(columns)))


def _declare_fills(schema: "Schema", fills: "Floats") -> "Schema":
    """Return a schema with values for missing cells of numeric columns."""
    from fedneighbors.datasets._schema_columns import NumericColumn

    value_of = dict(zip(schema.feature_names, fills.tolist(), strict=True))
    columns = tuple(
        replace(column, missing=value_of[column.name])
        if isinstance(column, NumericColumn)
        else column
        for column in schema.columns
    )
    return replace(schema, columns=columns)


def training_options(
    *, partition: SplitKind = SplitKind.DIRICHLET, parties: int = 8, alpha: float = 0.3
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Add the options of tables, parties and output to a command.

    The command gets them as its first argument, of type :class:`Training`. The arguments are
    defaults.
    """
    shared: dict[str, tuple[Any, Any]] = {
        "data": (DataOption, inspect.Parameter.empty),
        "label": (LabelOption, "target"),
        "partition": (PartitionOption, partition),
        "parties": (PartiesOption, parties),
        "alpha": (AlphaOption, alpha),
        "factor": (FactorOption, 1.0),
        "classes_per_party": (ClassesOption, 2),
        "party_column": (PartyColumnOption, None),
        "drop": (DropOption, None),
        "identifier": (IdOption, None),
        "test_size": (TestOption, 0.25),
        "out": (OutOption, Path("fedneighbors-run")),
        "seed": (SeedOption, 0),
        "schema": (SchemaOption, None),
    }

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(command)
        def run(*, text_format: Any, **arguments: Any) -> None:
            given = SimpleNamespace(**{name: arguments.pop(name) for name in shared})
            files = choose_files(given.data, given.drop, given.identifier, text_format)
            split = Split(
                given.partition,
                given.parties,
                given.alpha,
                given.factor,
                given.classes_per_party,
                given.seed,
            )
            training = Training(
                files,
                given.label,
                given.party_column,
                split,
                given.test_size,
                given.out,
                given.schema,
            )
            command(training, **arguments)

        kind = inspect.Parameter.KEYWORD_ONLY
        added = [
            inspect.Parameter(name, kind, default=default, annotation=annotation)
            for name, (annotation, default) in shared.items()
        ]
        own = list(inspect.signature(command).parameters.values())[1:]
        own = [param.replace(kind=kind) for param in own]
        run.__signature__ = inspect.Signature(added + own)  # type: ignore[attr-defined]
        return text_options(run)

    return decorate
