"""Numbers from the paper: settings (Table 4) and results (Tables 2, 3 and 5 to 7)."""

from collections.abc import Mapping
from dataclasses import dataclass

VANILLA, MODIFIED = "vanilla CTGAN", "modified CTGAN"


@dataclass(frozen=True)
class Network:
    """A generator and its critic, "GEN architecture" and "DIS architecture" of Table 4.

    Parameters
    ----------
    generator, critic : tuple of int
        Units of the hidden layers.
    epochs : int
        Passes over the class's rows.
    """

    generator: tuple[int, ...]
    critic: tuple[int, ...]
    epochs: int


@dataclass(frozen=True)
class Similarity:
    """Quality of synthetic rows, of the negative and of the positive class.

    Parameters
    ----------
    shape : tuple of float
        Mean KSComplement (Table 5).
    correlation : tuple of float
        Mean correlation similarity (Table 6).
    """

    shape: tuple[float, float]
    correlation: tuple[float, float]


@dataclass(frozen=True)
class Clients:
    """Results of Table 7 for a set and a generator.

    Parameters
    ----------
    local, merged : tuple of float
        "AUC" of the first and the second client, alone and after meta-clustering.
    local_centers : tuple of tuple of int
        Number of negative and positive centers of each client.
    merged_centers : tuple of int
        Number of negative and positive centers after meta-clustering.
    server : float
        "AUC" on the server's tenth.
    """

    local: tuple[float, float]
    local_centers: tuple[tuple[int, int], tuple[int, int]]
    merged: tuple[float, float]
    merged_centers: tuple[int, int]
    server: float


@dataclass(frozen=True)
class Printed:
    """Printed numbers of a data set.

    Parameters
    ----------
    n_rows, n_features : int
        Numbers of rows and features, Table 2.
    n_synthetic : int
        Number of synthetic rows, Table 3.
    positive_share : float
        Share of positive rows among the synthetic ones, Table 3.
    negative, positive : Network
        Networks of each class, Table 4.
    thresholds : tuple of float
        Dthr of the clients and of the server, Table 4.
    similarity : mapping of str to Similarity
        By generator, Tables 5 and 6.
    clients : mapping of str to Clients
        By generator, Table 7.
    """

    n_rows: int
    n_features: int
    n_synthetic: int
    positive_share: float
    negative: Network
    positive: Network
    thresholds: tuple[float, float]
    similarity: Mapping[str, Similarity]
    clients: Mapping[str, Clients]


PRINTED: Mapping[str, Printed] = {
    "Breast Cancer Wisconsin": Printed(
        n_rows=699,
        n_features=11,
        n_synthetic=916,
        positive_share=0.5,
        negative=Network((32, 16), (16, 32), 80),
        positive=Network((16, 32), (32, 16), 50),
        thresholds=(0.19, 0.17),
        similarity={
            VANILLA: Similarity((0.868, 0.859), (0.860, 0.896)),
            MODIFIED: Similarity((0.877, 0.886), (0.868, 0.888)),
        },
        clients={
            VANILLA: Clients((1.0, 0.988), ((1, 27), (2, 28)), (0.976, 0.927), (3, 17), 0.957),
            MODIFIED: Clients((1.0, 1.0), ((2, 27), (3, 27)), (1.0, 1.0), (2, 18), 0.989),
        },
    ),
    "OVA Omentum": Printed(
        n_rows=1545,
        n_features=10936,
        n_synthetic=2936,
        positive_share=0.5,
        negative=Network((256, 128, 64), (64, 128, 256), 50),
        positive=Network((256, 128, 64), (64, 128, 256), 20),
        thresholds=(0.13, 0.07),
        similarity={
            VANILLA: Similarity((0.728, 0.704), (0.912, 0.920)),
            MODIFIED: Similarity((0.691, 0.661), (0.911, 0.920)),
        },
        clients={
            VANILLA: Clients(
                (0.746, 0.798), ((137, 16), (139, 5)), (0.735, 0.794), (276, 21), 0.738
            ),
            MODIFIED: Clients(
                (0.989, 0.973), ((135, 1), (133, 4)), (0.989, 0.973), (267, 6), 0.966
            ),
        },
    ),
    "Credit card, subset": Printed(
        n_rows=284_807,
        n_features=32,
        n_synthetic=398_237,
        positive_share=0.29,
        negative=Network((16, 32), (32, 16), 50),
        positive=Network((16, 32), (32, 16), 150),
        thresholds=(0.17, 0.13),
        similarity={
            VANILLA: Similarity((0.914, 0.793), (0.981, 0.856)),
            MODIFIED: Similarity((0.920, 0.688), (0.980, 0.860)),
        },
        clients={
            VANILLA: Clients(
                (0.933, 0.940), ((11, 148), (17, 148)), (0.911, 0.912), (13, 74), 0.914
            ),
            MODIFIED: Clients(
                (0.985, 0.987), ((5, 213), (4, 209)), (0.947, 0.946), (4, 117), 0.949
            ),
        },
    ),
    "Polish bankruptcy, year 1": Printed(
        n_rows=10_172,
        n_features=65,
        n_synthetic=19_544,
        positive_share=0.5,
        negative=Network((64, 32, 16), (32, 128), 50),
        positive=Network((64, 32), (256, 256), 30),
        thresholds=(0.11, 0.05),
        similarity={
            VANILLA: Similarity((0.6122, 0.929), (0.672, 0.894)),
            MODIFIED: Similarity((0.262, 0.325), (0.932, 0.894)),
        },
        clients={
            VANILLA: Clients((0.945, 0.897), ((16, 37), (11, 38)), (0.947, 0.964), (21, 64), 0.853),
            MODIFIED: Clients(
                (0.977, 0.965), ((27, 67), (28, 70)), (0.979, 0.982), (36, 110), 0.899
            ),
        },
    ),
}
"""Keys are names of data sets. The paper's Polish rows are of year 2 (10,172), ours of year 1."""
