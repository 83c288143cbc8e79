"""``fedneighbors run``: one command per method, on a file split over simulated parties."""

from typing import Annotated, Any

import typer

from fedneighbors.cli._files import add_command
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
    privacy_of,
)
from fedneighbors.cli._run_fedknn import fedknn
from fedneighbors.cli._splits import SplitKind, TaskName, TaskOption
from fedneighbors.cli._training import Training, training_options

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


@training_options()
def flynn(
    training: Training,
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
    epsilon: EpsilonOption = None,
    delta: DeltaOption = None,
    mechanism: MechanismOption = "local",
) -> None:
    """Train FlyNN, the one-round federated nearest-neighbour classifier.

    Each file is a party; the rows of a single one are split over simulated
    parties. All run in this process. For separate machines use the Flower app.
    """
    from fedneighbors.runs._flynn import run as run_flynn

    privacy = privacy_of(epsilon, delta, mechanism, training.schema)
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
        _drop_none(options),
        model_file="model.fnn",
        tables=["summary", "joining"],
        search=search,
    )


@training_options(parties=4, alpha=1.0)
def fedpnn(
    training: Training,
    min_count: MinCountOption = 5,
    client_threshold: ClientOption = None,
    server_threshold: ServerOption = None,
    n_features_to_select: SelectOption = None,
    epsilon: EpsilonOption = None,
    delta: DeltaOption = None,
    mechanism: MechanismOption = "local",
) -> None:
    """Train FedPNN, the one-round classifier from cluster centers.

    Each file is a party; the rows of a single one are split over simulated
    parties. All run in this process. Reports what the centers would reveal about
    single rows.
    """
    from fedneighbors.runs._fedpnn import run as run_fedpnn

    schema = training.schema
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
        keep_missing=True,
    )


@training_options()
def knnper(
    training: Training,
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
) -> None:
    """Train kNN-Per: one model for all, and a memory for each client.

    Each file is a client; the rows of a single one are split over simulated
    clients. All run in this process. Compares kNN-Per with the shared model
    and with training alone.
    """
    from fedneighbors.runs._knnper import run as run_knnper

    rounds_options = {
        "rounds": rounds, "patience": patience, "max_rounds": max_rounds, "schedule": schedule,
        "participation": participation, "learning_rate": learning_rate, "checkpoint": checkpoint,
    }  # fmt: skip
    privacy = privacy_of(epsilon, delta, "local", training.schema, delta_only_central=False)
    options = KNNPerOptions(
        rounds_options, model, hidden, representation, memory, capacity, strategy, privacy
    )
    others = {"n_neighbors": neighbors, "combine": combine.value, "device": device.value}
    training.run(
        run_knnper,
        options.parameters() | others,
        model_file="model.fnk",
        tables=["summary", "joining", "clients"],
        with_baselines=baselines,
        row_shape=options.row_shape(training.files),
    )


@training_options(partition=SplitKind.IID, parties=10, alpha=0.5)
def boosting(
    training: Training,
    task: TaskOption = TaskName.CLASSIFICATION,
    max_iter: Annotated[
        int | None, typer.Option(min=1, help="Number of iterations; 100 by default.")
    ] = None,
    max_depth: Annotated[
        int | None, typer.Option(min=1, help="Depth of the trees; by default without limit.")
    ] = None,
) -> None:
    """Train gradient boosting, the same model as on the pooled rows.

    Each file is a party; the rows of a single one are split over simulated
    parties. All run in this process. There is no privacy budget.
    """
    parameters = {"max_iter": max_iter, "max_depth": max_depth}
    _run_shared(training, "boosting", parameters, "model.fnb", task, keep_missing=True)


@training_options(partition=SplitKind.IID, parties=10, alpha=0.5)
def discriminants(
    training: Training,
    quadratic: Annotated[
        bool | None,
        typer.Option(
            "--quadratic/--linear",
            help="A covariance for each class, or one for all; by default the better one, or 500 "
            "random features, on held-out training rows.",
        ),
    ] = None,
) -> None:
    """Train discriminant analysis, the same model as on the pooled rows.

    Each file is a party; the rows of a single one are split over simulated
    parties. All run in this process. There is no privacy budget.
    """
    _run_shared(training, "discriminants", {"quadratic": quadratic}, "model.fnd")


@training_options(partition=SplitKind.IID, parties=10, alpha=0.5)
def neighbors(
    training: Training,
    task: TaskOption = TaskName.CLASSIFICATION,
    k: Annotated[
        int | None,
        typer.Option(
            "-k",
            "--neighbors",
            min=1,
            help="Number of neighbors; by default the best of 5, 15 and 45 on held-out training "
            "rows.",
        ),
    ] = None,
) -> None:
    """Predict by a vote of the nearest rows of all parties.

    Each file is a party; the rows of a single one are split over simulated
    parties. All run in this process. Columns are standardized over all parties.
    The model file has the rows of all parties.
    """
    _run_shared(training, "neighbors", {"n_neighbors": k}, "model.fns", task)


def _run_shared(
    training: Training,
    method: str,
    parameters: dict[str, Any],
    model_file: str,
    task: TaskName = TaskName.CLASSIFICATION,
    *,
    keep_missing: bool = False,
) -> None:
    """Train a method with one model for all parties."""
    from fedneighbors.runs._shared_models import run as run_shared

    training.run(
        run_shared,
        _drop_none(parameters),
        model_file=model_file,
        tables=["summary", "joining"],
        keep_missing=keep_missing,
        task=task,
        method=method,
    )


def _drop_none(values: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}


run = typer.Typer(
    no_args_is_help=True, help="Train or search over parties; write a record and a report."
)
add_command(
    run,
    flynn,
    "run flynn --data patients.csv --label outcome --party-column hospital",
    "\n\nOne file for each party: [bold]fedneighbors run flynn --data north=n.csv --data "
    "south=s.csv --label outcome --id patient[/bold]",
)
add_command(run, fedpnn, "run fedpnn --data loans.csv --label default --party-column bank")
add_command(
    run,
    knnper,
    "run knnper --data visits.csv --label diagnosis --party-column hospital --combine pool",
)
add_command(
    run, boosting, "run boosting --data patients.csv --label outcome --party-column hospital"
)
add_command(
    run,
    discriminants,
    "run discriminants --data patients.csv --label outcome --party-column hospital",
)
add_command(
    run, neighbors, "run neighbors --data patients.csv --label outcome --party-column hospital"
)
add_command(
    run,
    fedknn,
    "run fedknn --data titles.txt --metric edit --query 'graph search' -k 10 --parties 8 "
    "--partition zipf:0.6",
    "\n\nWithout a file: [bold]fedneighbors run fedknn --data digits --metric euclidean --query "
    "row:17[/bold]"
    "\n\nWith a column of parties: [bold]fedneighbors run fedknn --data places.csv "
    "--metric haversine --columns lon,lat --party-column country --query 2.35,48.86[/bold]"
    "\n\nWith privacy: [bold]fedneighbors run fedknn --data molecules.smi --metric graph_edit "
    "--query c1ccccc1CO -k 64 --algorithm 'dann*' --epsilon 1 --delta 1e-6[/bold]",
)
