"""What private trainings on tables share: masked noise shares, survivors and the noise variance."""

from dataclasses import dataclass
from typing import Any

from fedneighbors.federation._roles import Replies
from fedneighbors.privacy._guarantees import ZCDP, PureDP, Sensitivity
from fedneighbors.privacy._policy import Privacy
from fedneighbors.privacy.noise._calibration import mechanism, shares, shares_counted_on, variance
from fedneighbors.secure_sum._shares import default_threshold
from fedneighbors.tabular._schema import Agreed


@dataclass(frozen=True)
class PrivateTraining:
    """One private training; methods derive their coordinator's rounds from it.

    Parameters
    ----------
    privacy : Privacy
        Terms that all parties agreed to.
    schema : Agreed
        Columns and classes.
    run : str
        Name of the training; replies are charged once per name.
    n_parties : int
        Parties that take part.
    """

    privacy: Privacy
    schema: Agreed
    run: str
    n_parties: int

    @property
    def masked(self) -> bool:
        """Whether parties add shares of the noise inside masked sums."""
        return self.privacy.mechanism == "central" and self.n_parties > 1

    @property
    def n_shares(self) -> int:
        """Least number of honest noise shares in a sum; 1 without masks."""
        if not self.masked:
            return 1
        return shares_counted_on(
            n_asked=self.n_parties,
            threshold=default_threshold(self.n_parties),
            colluders=self.privacy.colluders,
        )

    def survivors(self, replies: Replies, during: str) -> Any:
        """Return replies with a sum; in a masked one parties may be missing."""
        if self.masked and replies.total is not None:
            return replies
        return replies.complete(during)

    def variance(
        self, allowed: PureDP | ZCDP, moved: Sensitivity, *, n_cells: int, n_summed: int
    ) -> float:
        """Return the variance of the noise on one cell of a sum.

        Parameters
        ----------
        allowed : PureDP or ZCDP
            Budget of the release.
        moved : Sensitivity
            Sensitivity of the release.
        n_cells : int
            Cells of the release.
        n_summed : int
            Parties in the sum.
        """
        if not self.masked:
            return variance(mechanism(allowed, moved), n_summed=n_summed)
        some = shares(allowed, moved, n_shares=self.n_shares, n_cells=n_cells)
        return variance(some, n_summed=n_summed)
