"""``fedneighbors run``: one command per method, on a file split over simulated parties."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedneighbors.cli._files import (
    DropOption,
    Files,
    IdOption,
    StrictCommand,
    choose_files,
    text_options,
)
from fedneighbors.cli._knnper_options import (
    CapacityOption,
    CheckpointOption,
    Combine,
    CombineOption,
    Device,
    DeviceOption,
    HiddenOption,
    KNNPerOptions,
    LearningRateOption,
    MaxRoundsOption,
    MemoryName,
    MemoryOption,
    ModelOption,
    NeighborsOption,
    ParticipationOption,
    PatienceOption,
    RepresentationName,
    RepresentationOption,
    RoundsOption,
    ScheduleOption,
    StrategyName,
    StrategyOption,
)
from fedneighbors.cli._privacyoptions import (
    DeltaOption,
    EpsilonOption,
    MechanismOption,
    SchemaOption,
    privacy_of,
)
from fedneighbors.cli._run_fedknn import fedknn
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
    TestOption,
    read_and_split,
    write_manifest,
)

if TYPE_CHECKING:
    from fedneighbors.datasets._schema_columns import Column
    from fedneighbors.privacy import Privacy

_FILLED_NOTE = (
    "Medians of missing cells and categories of nominal columns come from all rows of the data, "
    "including held-out ones, and were not agreed by the parties: they are treated as public here."
)
_ENCODED_NOTE = (
    "Categories of nominal columns come from all rows of the data, including held-out ones, and "
    "were not agreed by the parties: they are treated as public here."
)
_CLIENTS_NOTE = (
    "Categories of nominal columns come from all rows of the data, including held-out ones, and "
    "were not agreed by the clients."
)


MinCountOption = Annotated[int, typer.Option(min=1, help="Minimum number of rows per center.")]
ClientOption = Annotated[
    float | None,
    typer.Option(help="Distance threshold of the parties; by default each party chooses its own."),
]
ServerOption = Annotated[
    float | None,
    typer.Option(help="Distance threshold of the server; by default every center is kept."),
]
SelectOption = Annotated[
    int | None,
    typer.Option(min=1, help="Number of columns to keep, by largest t statistic; all by default."),
]
BaselinesOption = Annotated[
    bool, typer.Option(help="Also train thirteen methods for comparison; takes minutes.")
]


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
        fills_cells: bool = False,
        note: str,
        keep_missing: bool = False,
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
        fills_cells : bool
            Missing cells were filled: add the note even without nominal columns.
        note : str
            Note for the record of a table with nominal columns.
        keep_missing : bool
            Leave missing cells of numeric columns NaN.
        **options
            Other arguments of ``train``.
        """
        from fedneighbors.cli._console import delay_interrupt, progress_bar
        from fedneighbors.cli._results import print_and_save_model
        from fedneighbors.records._storage import lock_folder

        data_split = read_and_split(
            self.files,
            label=self.label,
            party_column=self.party_column,
            split=self.split,
            schema=self.schema,
            keep_missing=keep_missing,
            private=parameters.get("privacy") is not None,
        )
        table = data_split.table
        if parameters.get("privacy") is not None:
            parameters = parameters | {"privacy": _declare_features(parameters["privacy"])}
        with lock_folder(self.out):
            with progress_bar() as progress:
                model, record, *roles = train(
                    table.x,
                    table.y,
                    data_split.owners,
                    feature_names=table.feature_names,
                    test_size=self.test_size,
                    seed=self.split.seed,
                    parameters=parameters,
                    progress=progress,
                    **options,
                )
            draft = None if self.schema else table.schema
            needs_note = draft is not None and (fills_cells or bool(draft.nominal_names))
            with delay_interrupt():
                print_and_save_model(
                    model,
                    record,
                    table,
                    self.out / model_file,
                    source=data_split.source,
                    tables=tables,
                    note=note if needs_note else "",
                )
                # exact counts would void the guarantee of a private model
                if parameters.get("privacy") is None:
                    self._write_manifest(data_split, roles)

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


@text_options
def flynn(
    data: DataOption,
    label: LabelOption = "target",
    partition: PartitionOption = SplitKind.DIRICHLET,
    parties: PartiesOption = 8,
    alpha: AlphaOption = 0.3,
    factor: FactorOption = 1.0,
    classes_per_party: ClassesOption = 2,
    party_column: PartyColumnOption = None,
    drop: DropOption = None,
    identifier: IdOption = None,
    test_size: TestOption = 0.25,
    search: Annotated[
        bool, typer.Option("--search", help="Choose sizes and decay by cross-validation.")
    ] = False,
    n_units: Annotated[int | None, typer.Option(min=1, help="Number of hash units (m).")] = None,
    n_inputs: Annotated[
        int | None, typer.Option(min=1, help="Number of inputs per unit (s).")
    ] = None,
    n_active: Annotated[
        int | None, typer.Option(min=1, help="Number of active units per row (rho).")
    ] = None,
    decay: Annotated[
        float | None, typer.Option(help="Weight per activation (gamma), in [0, 1).")
    ] = None,
    out: OutOption = Path("fedneighbors-run"),
    seed: SeedOption = 0,
    epsilon: EpsilonOption = None,
    delta: DeltaOption = None,
    mechanism: MechanismOption = "local",
    schema: SchemaOption = None,
    *,
    text_format: Any,
) -> None:
    """Train FlyNN, the one-round federated nearest-neighbour classifier.

    Each file is a party; the rows of a single one are split over simulated
    parties. All run in this process. For separate machines use the Flower app.
    """
    from fedneighbors.runs._flynn import run as run_flynn

    split = Split(partition, parties, alpha, factor, classes_per_party, seed)
    files = choose_files(data, drop, identifier, text_format)
    training = Training(files, label, party_column, split, test_size, out, schema)
    privacy = privacy_of(epsilon, delta, mechanism, schema)
    if privacy is not None and search:
        raise typer.BadParameter("--search sums exact hits and would void --epsilon; omit one")
    options = {
        "n_units": n_units,
        "n_inputs": n_inputs,
        "n_active": n_active,
        "decay": decay,
        "privacy": privacy,
    }
    training.run(
        run_flynn,
        {name: value for name, value in options.items() if value is not None},
        model_file="model.fnn",
        tables=["summary", "joining"],
        fills_cells=True,
        note=_FILLED_NOTE,
        search=search,
    )


@text_options
def fedpnn(
    data: DataOption,
    label: LabelOption = "target",
    partition: PartitionOption = SplitKind.DIRICHLET,
    parties: PartiesOption = 4,
    alpha: AlphaOption = 1.0,
    factor: FactorOption = 1.0,
    classes_per_party: ClassesOption = 2,
    party_column: PartyColumnOption = None,
    drop: DropOption = None,
    identifier: IdOption = None,
    test_size: TestOption = 0.25,
    min_count: MinCountOption = 5,
    client_threshold: ClientOption = None,
    server_threshold: ServerOption = None,
    n_features_to_select: SelectOption = None,
    out: OutOption = Path("fedneighbors-run"),
    seed: SeedOption = 0,
    epsilon: EpsilonOption = None,
    delta: DeltaOption = None,
    mechanism: MechanismOption = "local",
    schema: SchemaOption = None,
    *,
    text_format: Any,
) -> None:
    """Train FedPNN, the one-round classifier from cluster centers.

    Each file is a party; the rows of a single one are split over simulated
    parties. All run in this process. Reports what the centers would reveal about
    single rows.
    """
    from fedneighbors.runs._fedpnn import run as run_fedpnn

    split = Split(partition, parties, alpha, factor, classes_per_party, seed)
    files = choose_files(data, drop, identifier, text_format)
    training = Training(files, label, party_column, split, test_size, out, schema)
    parameters = {
        "min_count": min_count,
        "client_threshold": client_threshold,
        "server_threshold": server_threshold,
        "n_features_to_select": n_features_to_select,
        "privacy": privacy_of(epsilon, delta, mechanism, schema, delta_only_central=False),
    }
    training.run(
        run_fedpnn,
        parameters,
        model_file="model.fnp",
        tables=["summary", "joining", "exposure", "columns"],
        note=_ENCODED_NOTE,
        keep_missing=True,
    )


@text_options
def knnper(
    data: DataOption,
    label: LabelOption = "target",
    partition: PartitionOption = SplitKind.DIRICHLET,
    parties: PartiesOption = 8,
    alpha: AlphaOption = 0.3,
    factor: FactorOption = 1.0,
    classes_per_party: ClassesOption = 2,
    party_column: PartyColumnOption = None,
    drop: DropOption = None,
    identifier: IdOption = None,
    test_size: TestOption = 0.25,
    model: ModelOption = None,
    hidden: HiddenOption = None,
    representation: RepresentationOption = RepresentationName.AUTO,
    rounds: RoundsOption = None,
    patience: PatienceOption = None,
    max_rounds: MaxRoundsOption = None,
    participation: ParticipationOption = None,
    schedule: ScheduleOption = None,
    learning_rate: LearningRateOption = None,
    checkpoint: CheckpointOption = None,
    device: DeviceOption = Device.CPU,
    neighbors: NeighborsOption = 10,
    combine: CombineOption = Combine.AUTO,
    memory: MemoryOption = MemoryName.EXACT,
    capacity: CapacityOption = None,
    strategy: StrategyOption = StrategyName.CONCATENATE,
    baselines: BaselinesOption = False,
    epsilon: EpsilonOption = None,
    delta: DeltaOption = None,
    schema: SchemaOption = None,
    out: OutOption = Path("fedneighbors-run"),
    seed: SeedOption = 0,
    *,
    text_format: Any,
) -> None:
    """Train kNN-Per: one model for all, and a memory for each client.

    Each file is a client; the rows of a single one are split over simulated
    clients. All run in this process. Compares kNN-Per with the shared model
    and with training alone.
    """
    from fedneighbors.runs._knnper import run as run_knnper

    split = Split(partition, parties, alpha, factor, classes_per_party, seed)
    files = choose_files(data, drop, identifier, text_format)
    training = {
        "rounds": rounds, "patience": patience, "max_rounds": max_rounds, "schedule": schedule,
        "participation": participation, "learning_rate": learning_rate, "checkpoint": checkpoint,
    }  # fmt: skip
    privacy = privacy_of(epsilon, delta, "local", schema, delta_only_central=False)
    options = KNNPerOptions(
        training, model, hidden, representation, memory, capacity, strategy, privacy
    )
    others = {"n_neighbors": neighbors, "combine": combine.value, "device": device.value}
    Training(files, label, party_column, split, test_size, out, schema).run(
        run_knnper,
        options.parameters() | others,
        model_file="model.fnk",
        tables=["summary", "joining", "clients"],
        note=_CLIENTS_NOTE,
        with_baselines=baselines,
        row_shape=options.row_shape(files),
    )


run = typer.Typer(
    no_args_is_help=True, help="Train or search over parties; write a record and a report."
)
run.command(
    cls=StrictCommand,
    epilog="Example: [bold]fedneighbors run flynn --data patients.csv --label outcome "
    "--party-column hospital[/bold]"
    "\n\nOne file for each party: [bold]fedneighbors run flynn --data north=n.csv --data "
    "south=s.csv --label outcome --id patient[/bold]",
)(flynn)
run.command(
    cls=StrictCommand,
    epilog="Example: [bold]fedneighbors run fedpnn --data loans.csv --label default "
    "--party-column bank[/bold]",
)(fedpnn)
run.command(
    cls=StrictCommand,
    epilog="Example: [bold]fedneighbors run knnper --data visits.csv --label diagnosis "
    "--party-column hospital --combine pool[/bold]",
)(knnper)
run.command(
    cls=StrictCommand,
    epilog="Example: [bold]fedneighbors run fedknn --data titles.txt --metric edit --query 'graph "
    "search' -k 10 --parties 8 --partition zipf:0.6[/bold]"
    "\n\nWithout a file: [bold]fedneighbors run fedknn --data digits --metric euclidean --query "
    "row:17[/bold]"
    "\n\nWith a column of parties: [bold]fedneighbors run fedknn --data places.csv "
    "--metric haversine --columns lon,lat --party-column country --query 2.35,48.86[/bold]"
    "\n\nWith privacy: [bold]fedneighbors run fedknn --data molecules.smi --metric graph_edit "
    "--query c1ccccc1CO -k 64 --algorithm 'dann*' --epsilon 1 --delta 1e-6[/bold]",
)(fedknn)
