"""``fedneighbors run knnper``: trains a network and memories over clients, in this process."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

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
    "Categories of nominal columns come from all rows of the file, held-out ones included, and "
    "were not agreed by the clients."
)


class Combine(StrEnum):
    """How memory and network are put together."""

    PAPER = "paper"
    POOL = "pool"


class Device(StrEnum):
    """Where networks train."""

    CPU = "cpu"
    CUDA = "cuda"
    AUTO = "auto"


def knnper(
    data: DataOption,
    label: LabelOption = "target",
    partition: PartitionOption = SplitKind.DIRICHLET,
    parties: PartiesOption = 8,
    alpha: AlphaOption = 0.3,
    factor: FactorOption = 1.0,
    classes_per_party: ClassesOption = 2,
    party_column: PartyColumnOption = None,
    test_size: TestOption = 0.25,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds of federated averaging.")] = 50,
    participation: Annotated[
        float, typer.Option(min=0.001, max=1.0, help="Share of clients in a round.")
    ] = 1.0,
    neighbors: Annotated[int, typer.Option("-k", "--neighbors", min=1, help="That vote.")] = 10,
    combine: Annotated[
        Combine,
        typer.Option(help="Each client's own weight (paper), or weights for all (pool)."),
    ] = Combine.PAPER,
    checkpoint: Annotated[
        Path | None,
        typer.Option(help="File from which a training that was interrupted goes on."),
    ] = None,
    rivals: Annotated[
        bool,
        typer.Option(help="Train eleven other methods, too, from FedAvg to APFL; takes minutes."),
    ] = False,
    device: Annotated[
        Device, typer.Option(help="Where networks train; auto takes a GPU if there is one.")
    ] = Device.CPU,
    out: OutOption = Path("fedneighbors-run"),
    seed: SeedOption = 0,
) -> None:
    """Train kNN-Per: one network for all, and a memory for each client.

    Reads one file and plays a federation of its rows in this process, to see
    what each client would gain beside the shared network and alone.
    """
    from fedneighbors.cli._console import progress_bar
    from fedneighbors.cli._results import keep_model
    from fedneighbors.partition import describe
    from fedneighbors.runs._knnper import run as run_knnper

    split = Split(partition, parties, alpha, factor, classes_per_party, seed)
    played = play(data, label=label, party_column=party_column, split=split)
    table = played.table
    with progress_bar() as progress:
        model, record, roles = run_knnper(
            table.x,
            table.y,
            played.owners,
            feature_names=table.feature_names,
            test_size=test_size,
            seed=seed,
            parameters={
                "n_rounds": rounds,
                "participation": participation,
                "n_neighbors": neighbors,
                "combine": combine.value,
                "checkpoint": checkpoint,
                "device": device.value,
            },
            with_baselines=rivals,
            progress=progress,
        )
    has_words = table.encoder is not None and bool(table.encoder.nominal_names)
    keep_model(
        model,
        record,
        table,
        out / "model.fnk",
        source=played.source,
        shown=["summary", "clients"],
        encoded=_ENCODED if has_words else "",
    )
    dealt = played.manifest
    manifest = describe(
        played.owners,
        table.y,
        kind=dealt.kind,
        seed=dealt.seed,
        parameters=dealt.parameters,
        roles=roles,
        unseen=(),  # every client takes part in training
    )
    keep_manifest(manifest, out / "manifest.json")
