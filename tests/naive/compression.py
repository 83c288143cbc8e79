"""Naive versions of the compressed memories of kNN-Per."""

import math
import struct

from tests.naive.vectors.distances import square_sums


def round_to_float32(number):
    """Round a number to float32."""
    return struct.unpack("<f", struct.pack("<f", number))[0]


def quantize_row(row):
    """Return lowest value, step and 8-bit codes of a row."""
    low, step = round_to_float32(min(row)), round_to_float32(max(row) / 255 - min(row) / 255)
    if step == 0:
        return low, step, [0] * len(row)
    return low, step, [min(255, max(0, round((cell - low) / step))) for cell in row]


def draw_centers(rows, n_centers, weights, uniforms):
    """Draw initial centers by weight and squared distance to earlier ones."""
    initial, squares = [], [1.0] * len(rows)
    while len(initial) < n_centers and rows:
        cumulative, total = [], 0.0
        for weight, square in zip(weights, squares, strict=True):
            total += weight * square
            cumulative.append(total)
        if not total > 0:
            break
        target = next(uniforms) * total
        candidates = [row for row, reached in enumerate(cumulative) if reached > target]
        distant = [row for row, square in enumerate(squares) if square]
        initial.append(min(candidates[0] if candidates else len(rows), distant[-1]))
        new_squares = square_sums(rows, rows[initial[-1]])
        if len(initial) > 1:
            new_squares = [min(*pair) for pair in zip(squares, new_squares, strict=True)]
        squares = new_squares
    return [list(rows[row]) for row in initial]


def assign_rows(rows, centers):
    """Return the nearest center of each row; the first wins ties."""
    squares_by_row = [square_sums(centers, row) for row in rows]
    return [squares.index(min(squares)) for squares in squares_by_row]


def average_rows(rows, weights, centers, owners):
    """Return the weighted mean of each center's rows."""
    new_centers = []
    for number, center in enumerate(centers):
        members = [row for row, owner in enumerate(owners) if owner == number]
        if not members:
            new_centers.append(center)
            continue
        total = 0.0
        sums = [0.0] * len(center)
        for row in members:
            total += weights[row]
            sums = [s + weights[row] * cell for s, cell in zip(sums, rows[row], strict=True)]
        new_centers.append([s / total for s in sums])
    return new_centers


def cluster_rows(rows, n_centers, weights, uniforms, max_steps):
    """Return the centers that have rows and the center of each row."""
    centers = draw_centers(rows, n_centers, weights, uniforms)
    owners = assign_rows(rows, centers)
    for _ in range(max_steps):
        centers = average_rows(rows, weights, centers, owners)
        previous, owners = owners, assign_rows(rows, centers)
        if previous == owners:
            break
    used = sorted(set(owners))
    return [centers[center] for center in used], [used.index(center) for center in owners]


def allocate_centers(n_rows, share):
    """Return the number of centers for each class."""
    n_centers = [1 for _ in n_rows]
    while sum(n_centers) < math.floor(share * sum(n_rows) + 0.5):
        loads = [n / n_assigned for n, n_assigned in zip(n_rows, n_centers, strict=True)]
        n_centers[loads.index(max(loads))] += 1
    return n_centers


def split_sections(row, n_sections, width):
    """Split a row into sections, the last padded with zeros."""
    padded = [*row, *[0.0] * (n_sections * width - len(row))]
    return [padded[s * width : (s + 1) * width] for s in range(n_sections)]


def section_square(section, entry):
    """Return the squared distance between a section and a codebook entry."""
    square = 0.0
    for cell, other in zip(section, entry, strict=True):
        square += (cell - other) * (cell - other)
    return square


def nearest_entries(row, entries):
    """Return the index of the nearest entry for each section."""
    nearest = []
    for section, codebook in zip(
        split_sections(row, len(entries), len(entries[0][0])), entries, strict=True
    ):
        squares = [section_square(section, entry) for entry in codebook]
        nearest.append(squares.index(min(squares)))
    return nearest


def asymmetric_nearest(codes, entries, queries, k, excluded):
    """Return positions and distances of the k nearest codes.

    Ties go to the earlier code.
    """
    positions, distances = [], []
    for q, query in enumerate(queries):
        sections = split_sections(query, len(entries), len(entries[0][0]))
        candidates = []
        for row, code in enumerate(codes):
            square = 0.0
            for section, codebook, number in zip(sections, entries, code, strict=True):
                square += section_square(section, codebook[number])
            if excluded is None or excluded[q] != row:
                candidates.append((square, row))
        nearest = sorted(candidates)[:k]
        positions.append([row for _, row in nearest])
        distances.append([math.sqrt(square) for square, _ in nearest])
    return positions, distances


def prototype_scores(query, projection, prototypes, scores, gamma):
    """Return ProtoNN's score of each label for one query."""
    projected = [sum(w * cell for w, cell in zip(row, query, strict=True)) for row in projection]
    total = [0.0] * len(scores[0])
    for prototype, label_scores in zip(prototypes, scores, strict=True):
        square = sum((a - b) ** 2 for a, b in zip(projected, prototype, strict=True))
        similarity = math.exp(-(gamma**2) * square)
        total = [t + similarity * score for t, score in zip(total, label_scores, strict=True)]
    return total


def prototype_loss(rows, targets, projection, prototypes, scores, gamma):
    """Return the mean squared error of the scores of some rows."""
    total = 0.0
    for row, target in zip(rows, targets, strict=True):
        predicted = prototype_scores(row, projection, prototypes, scores, gamma)
        total += sum((s - t) ** 2 for s, t in zip(predicted, target, strict=True))
    return total / len(rows)
