"""Decides pairs of graphs in order: a tree search first, branch and bound where that takes long."""

from typing import Any

from numba import njit

from fedneighbors.kernels.graph_edit._ged import LOADED, OBJECT, TAU, verify
from fedneighbors.kernels.graph_edit._geddual import branch_and_bound, fits

USES = {"ged": "bd7e93aa8576ef39", "geddual": "a110a8b7697e0e0f"}

_jit: Any = njit(cache=True, nogil=True, _nrt=False)  # type: ignore[call-overload]

# Places of `GedTree.head` after those of the tree search: work on this pair, what is at work, and
# the work after which the tree search gives up.
_SPENT, _STAGE, _PATIENCE = 9, 10, 11
_LARGE = 24  # nodes of the smaller graph; below, the tree search is worth twice the work per two
_TREE, _HANDED_OVER, _DUAL = range(3)  # what is at work


@_jit
def _decide(table: Any, g: int, query: Any, search: Any, tau: int, budget: int) -> Any:
    """Return a cost up to ``tau``, a bound above it, or -1 if the budget is spent; and the work."""
    head, work = search.tree.head, 0
    n_own, n_object = query[1].shape[0], table[0][g + 1] - table[0][g]
    n, m = min(n_own, n_object), max(n_own, n_object)
    if head[OBJECT] != g or head[TAU] != tau:
        head[_SPENT], head[_STAGE] = 0, _TREE
    small = search.query if n_own <= n_object else search.object
    large = search.object if n_own <= n_object else search.query
    if head[_STAGE] == _TREE:
        patience = head[_PATIENCE] << max(0, (_LARGE - n) // 2)
        left = patience - head[_SPENT]
        result, work = verify(table, g, query, search, tau, min(budget, left))
        head[_SPENT] += work
        if result >= 0 or (work > budget and head[_SPENT] <= patience):
            return result, work
        if not fits(search.dual, n, m, small.start[n], large.start[m]):
            head[_SPENT] = -(1 << 60)
            return -1, work
        head[_STAGE], head[LOADED] = _HANDED_OVER, 0
        if work > budget:
            return -1, work
    fresh, head[_STAGE] = head[_STAGE] == _HANDED_OVER, _DUAL
    result, more = branch_and_bound(small, large, search.dual, n, m, tau, budget - work, fresh)
    if result >= 0:
        head[OBJECT] = -1
    return result, work + more


@njit(cache=True, nogil=True)
def decide_many(
    table: Any, query: Any, positions: Any, start: int, tau: int, n_wanted: int, budget: int,
    lower: Any, upper: Any, search: Any,
) -> Any:  # fmt: skip
    """See :func:`fedneighbors.kernels.graph_edit._gedsearch.verify_many`."""
    n_found, work = 0, 0
    for i in range(start, positions.shape[0]):
        g = positions[i]
        if lower[g] <= tau < upper[g]:
            result, spent = _decide(table, g, query, search, tau, budget - work)
            work += spent
            while result < 0 and work <= budget:
                result, spent = _decide(table, g, query, search, tau, budget - work)
                work += spent
            if result < 0:
                return i, n_found
            bounds = upper if result <= tau else lower
            bounds[g] = result
        n_found += upper[g] <= tau
        if n_found == n_wanted:
            return i + 1, n_found
    return positions.shape[0], n_found
