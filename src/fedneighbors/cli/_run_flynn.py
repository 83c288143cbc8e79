"""``fedneighbors run flynn``: trains on a data set split over parties, in this process."""

from pathlib import Path
from typing import Annotated

import typer

from fedneighbors.cli._privacyoptions import (
    DeltaOption,
    EpsilonOption,
    MechanismOption,
    PublicOption,
    privacy_of,
)
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
    SplitKind,
    TestOption,
    keep_manifest,
    play,
)

_ENCODED = (
    "Medians of missing cells and categories of nominal columns come from all rows of the file, "
    "held-out ones included, and were not agreed by the parties: they count as public here."
)


def flynn(
    data: DataOption,
    label: LabelOption = "target",
    partition: PartitionOption = SplitKind.DIRICHLET,
    parties: PartiesOption = 8,
    alpha: AlphaOption = 0.3,
    factor: FactorOption = 1.0,
    classes_per_party: ClassesOption = 2,
    party_column: PartyColumnOption = None,
    test_size: TestOption = 0.25,
    search: Annotated[
        bool, typer.Option("--search", help="Choose sizes and decay by cross-validation.")
    ] = False,
    n_units: Annotated[int | None, typer.Option(min=1, help="Units of the hash.")] = None,
    n_inputs: Annotated[int | None, typer.Option(min=1, help="Features per unit.")] = None,
    n_active: Annotated[int | None, typer.Option(min=1, help="Active units per row.")] = None,
    decay: Annotated[float | None, typer.Option(help="Weight per activation, in [0, 1).")] = None,
    out: OutOption = Path("fedneighbors-run"),
    seed: SeedOption = 0,
    epsilon: EpsilonOption = None,
    delta: DeltaOption = None,
    mechanism: MechanismOption = "local",
    public: PublicOption = "",
) -> None:
    """Train FlyNN, the one-round federated nearest-neighbour classifier.

    Reads one file and plays a federation of its rows in this process, to see
    what it would reach. For parties on machines of their own see the Flower
    app.
    """
    from fedneighbors.cli._console import progress_bar
    from fedneighbors.cli._results import keep_model
    from fedneighbors.runs._flynn import run as run_flynn

    privacy = privacy_of(epsilon, delta, mechanism, public)
    if privacy is not None and search:
        raise typer.BadParameter("--search adds up exact hits and would void --epsilon; drop one")
    split = Split(partition, parties, alpha, factor, classes_per_party, seed)
    played = play(data, label=label, party_column=party_column, split=split)
    table = played.table
    given = {
        "n_units": n_units,
        "n_inputs": n_inputs,
        "n_active": n_active,
        "decay": decay,
        "privacy": privacy,
    }
    with progress_bar() as progress:
        model, record = run_flynn(
            table.x,
            table.y,
            played.owners,
            feature_names=table.feature_names,
            test_size=test_size,
            seed=seed,
            search=search,
            parameters={name: value for name, value in given.items() if value is not None},
            progress=progress,
        )
    keep_model(
        model,
        record,
        table,
        out / "model.fnn",
        source=played.source,
        shown=["summary"],
        encoded="" if table.encoder is None else _ENCODED,
    )
    if privacy is None:  # exact counts of rows beside a private model would void its promise
        keep_manifest(played.manifest, out / "manifest.json")
