"""Naive version of ``fedneighbors.kernels.clustering._evolving``."""

import math


def distance(row, center):
    squares = [(a - b) * (a - b) for a, b in zip(row, center, strict=True)]
    whole = len(squares) - len(squares) % 4
    lanes = [0.0] * 4
    for k, square in enumerate(squares):
        lanes[k % 4 if k < whole else 0] += square
    return math.sqrt(((lanes[0] + lanes[2]) + (lanes[1] + lanes[3])) / len(squares))


def _first_least(values):
    return min(range(len(values)), key=values.__getitem__)


def evolve(x, centers, radii, *, limit, original=False, max_centers=None):
    centers, radii = [list(center) for center in centers], list(radii)
    labels, n_outside = [], 0
    for row in x:
        far = [distance(row, center) for center in centers]
        holding = [j for j in range(len(centers)) if far[j] <= radii[j]]
        if not original:
            holding = [j for j in holding if j == _first_least(far)]
        if holding:
            labels.append(min(holding, key=far.__getitem__))
            continue
        sums = [d + radius for d, radius in zip(far, radii, strict=True)]
        if not centers or min(sums) > limit:
            if max_centers is not None and len(centers) == max_centers:
                n_outside += 1
                labels.append(_first_least(far))
                continue
            labels.append(len(centers))
            centers.append(list(row))
            radii.append(0.0)
            continue
        j = _first_least(sums)
        labels.append(j)
        radii[j] = max(0.5 * sums[j], radii[j])
        share = max(far[j] - radii[j], 0.0) / far[j]
        centers[j] = [c + (v - c) * share for c, v in zip(centers[j], row, strict=True)]
    return centers, radii, labels, n_outside


def nearest(x, centers):
    far = [[distance(row, center) for center in centers] for row in x]
    return [_first_least(row) for row in far], [min(row) for row in far]
