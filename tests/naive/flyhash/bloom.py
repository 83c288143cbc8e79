"""Fly Bloom filters with nested loops."""


def accumulate(active, labels, counts):
    for units, label in zip(active, labels, strict=True):
        for unit in units:
            counts[unit][label] += 1


def novelty(active, counts, weights, offsets):
    """Return one float for each row and class, summed in unit order."""
    result = []
    for units in active:
        totals = [0.0] * len(offsets)
        for unit in units:
            for label, offset in enumerate(offsets):
                totals[label] += weights[offset + counts[unit][label]]
        result.append(totals)
    return result


def grid_hits(active, labels, counts, held_out, weights, offsets, leave_one_out):
    n_settings, n_classes = len(weights[0]), len(counts[0])
    hits = [[0] * n_classes for _ in range(n_settings)]
    for units, label in zip(active, labels, strict=True):
        for t in range(n_settings):
            novelties = []
            for c in range(n_classes):
                if offsets[c] < 0:
                    continue
                novelty = 0.0
                for unit in units:
                    n_left_out = 1 if leave_one_out and c == label else 0
                    novelty += weights[
                        offsets[c] + counts[unit][c] - held_out[unit][c] - n_left_out
                    ][t]
                novelties.append((novelty, c))
            if novelties and min(novelties)[1] == label:
                hits[t][label] += 1
    return hits
