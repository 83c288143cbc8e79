"""Tables 2 and 3 as the paper prints them."""

from fedneighbors.records import ResultTable, Scalar

PAPER_METHODS = (
    "Local", "FedAvg", "FedAvg+", "ClusteredFL", "Ditto", "FedRep", "APFL", "pFedGP", "kNN-Per",
)  # fmt: skip

# Table 2: average and bottom decile of the accuracy over the clients, in percent.
SEEN = {
    "FEMNIST": "71.0/57.5 83.4/68.9 84.3/69.4 83.7/69.4 84.3/71.3 85.3/72.7 84.1/69.4 - 88.2/78.8",
    "CIFAR-10": "57.6/41.1 72.8/59.6 75.2/62.3 73.3/61.5 80.0/66.5 77.7/65.2 78.9/68.1 - 83.0/71.4",
    "CIFAR-10 (v2)": "82.4/71.3 67.9/60.1 85.0/79.6 79.9/72.3 86.3/80.6 89.1/85.3 82.6/76.4 "
    "88.9/84.1 93.8/88.2",
    "CIFAR-100": "31.5/19.8 47.4/36.0 51.4/41.1 47.2/36.2 52.0/41.4 53.2/41.7 51.7/41.1 - "
    "55.0/43.6",
    "CIFAR-100 (v2)": "45.7/38.2 42.3/34.8 48.1/41.9 43.5/37.2 48.7/40.3 70.1/65.2 48.3/42.1 "
    "61.1/50.0 74.6/67.3",
    "Shakespeare": "32.0/16.0 48.1/43.1 47.0/42.2 46.7/41.4 47.9/42.6 47.2/42.3 45.9/42.4 - "
    "51.4/45.4",
}

# Table 3: average accuracy on test rows and on training rows, in percent.
UNSEEN = {
    "FEMNIST": "- 83.1/83.3 84.2/88.5 83.2/86.0 83.9/86.9 85.4/88.9 84.2/85.5 - 88.1/90.5",
    "CIFAR-10": "- 72.9/72.8 75.3/78.2 73.9/76.2 79.7/84.3 76.4/79.5 79.2/80.6 - 82.4/87.1",
    "CIFAR-10 (v2)": "- 67.5/68.1 85.1/85.0 79.6/79.9 85.9/86.0 89.0/89.1 82.3/82.5 89.0/88.8 "
    "93.0/93.1",
    "CIFAR-100": "- 47.1/47.5 50.8/53.4 47.1/48.2 52.1/57.3 53.5/58.2 49.1/52.7 - 56.1/59.3",
    "CIFAR-100 (v2)": "- 42.1/42.2 47.9/48.1 43.2/43.4 48.8/48.5 69.8/70.0 48.2/48.4 61.3/61.0 "
    "74.3/74.5",
    "Shakespeare": "- 49.0/48.3 49.3/48.1 49.4/46.7 48.1/49.2 48.7/47.8 46.1/52.7 - 50.7/64.2",
}


def paper_table(group: str) -> ResultTable:
    """Return the paper's results.

    Parameters
    ----------
    group : {"seen", "unseen"}
        Seen clients (Table 2) or unseen clients (Table 3).
    """
    results, second = (SEEN, "bottom decile") if group == "seen" else (UNSEEN, "on its own rows")
    rows: list[tuple[Scalar, ...]] = []
    for data, cells in results.items():
        for method, cell in zip(PAPER_METHODS, cells.split(), strict=True):
            if cell != "-":
                first, other = (round(float(part) / 100, 3) for part in cell.split("/"))
                rows.append((data, method, first, other))
    return ResultTable(
        name=f"paper-{group}",
        title=f"The paper: clients {group} in training",
        columns=("data", "method", "accuracy", second),
        rows=tuple(rows),
        caption="MobileNet-v2 and a two-layer LSTM, 200 to 1,000 rounds, other data: compare the "
        "order of the methods, not the values.",
    )
