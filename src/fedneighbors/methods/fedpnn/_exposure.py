"""What a release of centers would tell of single records, said before it leaves a party."""

from dataclasses import dataclass, replace

import numpy as np

from fedneighbors._typing import Integers


@dataclass(frozen=True)
class Exposure:
    """How many records the centers of a party stand for.

    Parameters
    ----------
    n_records : int
        Rows of the party.
    n_withheld : int
        Rows of classes that send nothing.
    n_clusters : int
        Clusters as they evolved.
    n_single : int
        Clusters of a single record, which are that record.
    n_small : int
        Clusters of fewer records than a center must stand for, single ones included.
    n_centers : int
        Centers that are sent, after small clusters went into others.
    fewest : int
        Records of the smallest center that is sent; 0 if none is.
    """

    n_records: int
    n_withheld: int
    n_clusters: int
    n_single: int
    n_small: int
    n_centers: int
    fewest: int

    @classmethod
    def of(cls, *, n_records: int, grown: Integers, sent: Integers, min_count: int) -> "Exposure":
        """Return the exposure of a release.

        Parameters
        ----------
        n_records : int
            Rows of the party.
        grown : int64 array of shape (n_clusters,)
            Records of each cluster as they evolved.
        sent : int64 array of shape (n_centers,)
            Records of each center that is sent.
        min_count : int
            Records that a center must stand for.
        """
        return cls(
            n_records=n_records,
            n_withheld=n_records - int(sent.sum()),
            n_clusters=len(grown),
            n_single=int((grown == 1).sum()),
            n_small=int((grown < min_count).sum()),
            n_centers=len(sent),
            fewest=int(sent.min(initial=np.iinfo(np.int64).max)) if len(sent) else 0,
        )

    def beside(self, n_withheld: int) -> "Exposure":
        """Return it with so many further rows that nothing is sent of."""
        return replace(
            self,
            n_records=self.n_records + n_withheld,
            n_withheld=self.n_withheld + n_withheld,
        )

    @property
    def largest_risk(self) -> float:
        """One over the records of the smallest center that is sent, 0 if none is."""
        return 1 / self.fewest if self.fewest else 0.0

    def __str__(self) -> str:
        """Say it in sentences."""
        if not self.n_centers:
            return f"Nothing is sent: none of the {self.n_records} records is in a class of enough."
        withheld = (
            f" {self.n_withheld} records of rare classes are withheld." if self.n_withheld else ""
        )
        return (
            f"{self.n_centers} centers stand for {self.fewest} records or more each. Of "
            f"{self.n_clusters} clusters {self.n_single} were single records and {self.n_small} "
            f"too small; these went into others.{withheld}"
        )
