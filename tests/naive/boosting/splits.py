"""Naive twin of the search for a split: every split, its sums added up from the start."""

MIN_RELATIVE_GAIN = 2.0**-44


def find_split(histogram, starts, *, l2, min_hessian, min_rows):
    """Return (gain, feature, bin, missing_left, gradient, hessian, n_rows) or None."""
    total = add_up(histogram[starts[0] : starts[1]])
    best = None
    for feature in range(len(starts) - 1):
        *cells, missing = histogram[starts[feature] : starts[feature + 1]]
        for missing_left in (False, True):
            if missing_left and missing[2] == 0:
                continue
            for cut in range(len(cells)):
                left = add_up(cells[: cut + 1] + ([missing] if missing_left else []))
                right = [t - s for t, s in zip(total, left, strict=True)]
                if min(left[2], right[2]) < min_rows or min(left[1], right[1]) < min_hessian:
                    continue
                score = square(left[0]) / (left[1] + l2) + square(right[0]) / (right[1] + l2)
                direction = missing_left if missing[2] else left[2] > right[2]
                if best is None or score > best[0]:
                    best = (score, feature, cut, direction, *left)
    if best is None or best[0] == 0:
        return None
    gain = best[0] - square(total[0]) / (total[1] + l2)
    return (gain, *best[1:]) if gain > MIN_RELATIVE_GAIN * best[0] else None


def square(number):
    return float(number) * float(number)


def add_up(cells):
    return [sum(cell[k] for cell in cells) for k in range(3)]
