"""``fedneighbors run fedpnn``: trains on a data set split over parties, in this process."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedneighbors.cli._privacyoptions import (
    BoundsOption,
    DeltaOption,
    EpsilonOption,
    MechanismOption,
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

if TYPE_CHECKING:
    from fedneighbors.privacy._policy import Privacy


_ENCODED = (
    "Categories of nominal columns come from all rows of the file, held-out ones included, and "
    "were not agreed by the parties: they count as public here."
)

MinCountOption = Annotated[
    int, typer.Option(min=1, help="Records that every center stands for at least.")
]
ClientOption = Annotated[float | None, typer.Option(help="Dthr of the parties; else each chooses.")]
ServerOption = Annotated[
    float | None, typer.Option(help="Dthr of the server; else every center is kept.")
]
SelectOption = Annotated[
    int | None,
    typer.Option(min=1, help="Columns to keep, those of the largest t; else all are kept."),
]
PublicOption = Annotated[
    str,
    typer.Option(
        help="Facts that count as public: classes (which labels occur), which a file played "
        "as a federation needs with --epsilon.",
        rich_help_panel="Privacy",
    ),
]


def fedpnn(
    data: DataOption,
    label: LabelOption = "target",
    partition: PartitionOption = SplitKind.DIRICHLET,
    parties: PartiesOption = 4,
    alpha: AlphaOption = 1.0,
    factor: FactorOption = 1.0,
    classes_per_party: ClassesOption = 2,
    party_column: PartyColumnOption = None,
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
    public: PublicOption = "",
    bounds: BoundsOption = "",
) -> None:
    """Train FedPNN, the one-round classifier of centers that parties send.

    Reads one file and plays a federation of its rows in this process, to see
    what it would reach, and what its centers would tell of single records.
    """
    from fedneighbors.cli._console import progress_bar
    from fedneighbors.cli._results import keep_model
    from fedneighbors.runs._fedpnn import run as run_fedpnn

    privacy = _promise(epsilon, delta, mechanism, public, bounds)
    split = Split(partition, parties, alpha, factor, classes_per_party, seed)
    played = play(data, label=label, party_column=party_column, split=split, keep_missing=True)
    table = played.table
    with progress_bar() as progress:
        model, record = run_fedpnn(
            table.x,
            table.y,
            played.owners,
            feature_names=table.feature_names,
            test_size=test_size,
            seed=seed,
            parameters={
                "min_count": min_count,
                "client_threshold": client_threshold,
                "server_threshold": server_threshold,
                "n_features_to_select": n_features_to_select,
                "privacy": privacy,
            },
            progress=progress,
        )
    has_words = table.encoder is not None and bool(table.encoder.nominal_names)
    keep_model(
        model,
        record,
        table,
        out / "model.fnp",
        source=played.source,
        shown=["summary", "exposure", "columns"],
        encoded=_ENCODED if has_words else "",
    )
    if privacy is None:  # exact counts of rows beside a private model would void its promise
        keep_manifest(played.manifest, out / "manifest.json")


def _promise(
    epsilon: str | None, delta: str | None, mechanism: str, public: str, bounds: str
) -> "Privacy | None":
    """Return the privacy that the options ask for, None for none."""
    privacy = privacy_of(
        epsilon,
        delta,
        mechanism,
        public,
        bounds=bounds,
        read_off=["classes"],
        delta_only_central=False,
    )
    if privacy is not None and not bounds:
        raise typer.BadParameter(
            "--epsilon needs --bounds, to which values are cut; take them from documentation, not "
            "off the rows"
        )
    return privacy
