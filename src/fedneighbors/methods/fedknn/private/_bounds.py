"""Lower bounds that DANN* may count: each says something of its own object alone.

The price of the first counts rests on this: another record changes one bound and no other. Bounds
that follow from a whole table (its main directions, its longest row, the words that it knows) are
tighter, and move all together when one record does.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

from fedneighbors.federation._roles import Refuse
from fedneighbors.methods.fedknn._sessions import Session


def separate_bounds(session: Session) -> npt.NDArray[np.float64]:
    """Return a lower bound of the distance of each object that no other object has a part in.

    A session that can tell such bounds has a method ``separate_bounds``. For others it is 0, which
    bounds every distance.

    Parameters
    ----------
    session : Session
        A query that nothing was asked of yet.

    Returns
    -------
    float64 array of shape (n_objects,)

    Raises
    ------
    Refuse
        If the index is approximate: which objects it finds depends on all of them, so that counts
        may tell more than they are charged for.
    """
    if not session.exact:
        raise Refuse("a private search needs an exact index")
    own: Any = getattr(session, "separate_bounds", None)
    if own is None:
        return np.zeros(len(session.bounds()))
    bounds: npt.NDArray[np.float64] = own()
    return bounds
