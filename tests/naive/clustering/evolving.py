"""Naive version of ``fedneighbors.kernels.clustering._evolving``."""

import math


def compute_distance(row, center):
    squares = [(a - b) * (a - b) for a, b in zip(row, center, strict=True)]
    n_in_lanes = len(squares) - len(squares) % 4
    lanes = [0.0] * 4
    for k, square in enumerate(squares):
        lanes[k % 4 if k < n_in_lanes else 0] += square
    return math.sqrt(((lanes[0] + lanes[2]) + (lanes[1] + lanes[3])) / len(squares))


def _argmin(values):
    return min(range(len(values)), key=values.__getitem__)


def evolve(x, centers, radii, *, limit, original=False, max_centers=None):
    centers, radii = [list(center) for center in centers], list(radii)
    labels, n_outside = [], 0
    for row in x:
        distances = [compute_distance(row, center) for center in centers]
        containing = [j for j in range(len(centers)) if distances[j] <= radii[j]]
        if not original:
            containing = [j for j in containing if j == _argmin(distances)]
        if containing:
            labels.append(min(containing, key=distances.__getitem__))
            continue
        sums = [d + radius for d, radius in zip(distances, radii, strict=True)]
        if not centers or min(sums) > limit:
            if max_centers is not None and len(centers) == max_centers:
                n_outside += 1
                labels.append(_argmin(distances))
                continue
            labels.append(len(centers))
            centers.append(list(row))
            radii.append(0.0)
            continue
        j = _argmin(sums)
        labels.append(j)
        radii[j] = max(0.5 * sums[j], radii[j])
        fraction = max(distances[j] - radii[j], 0.0) / distances[j]
        centers[j] = [c + (v - c) * fraction for c, v in zip(centers[j], row, strict=True)]
    return centers, radii, labels, n_outside


def nearest(x, centers):
    distances = [[compute_distance(row, center) for center in centers] for row in x]
    return [_argmin(row) for row in distances], [min(row) for row in distances]
