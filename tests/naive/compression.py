"""Naive versions of the compressed memories of kNN-Per."""

import math
import struct

from tests.naive.vectors.distances import square_sums


def narrow(number):
    """Round a number to float32."""
    return struct.unpack("<f", struct.pack("<f", number))[0]


def eight_bits(row):
    """Return lowest value, step and 8-bit codes of a row."""
    low, step = narrow(min(row)), narrow(max(row) / 255 - min(row) / 255)
    if step == 0:
        return low, step, [0] * len(row)
    return low, step, [min(255, max(0, round((cell - low) / step))) for cell in row]


def first_centers(rows, n_centers, weights, draws):
    """Draw initial centers by weight and squared distance to earlier ones."""
    chosen, squares = [], [1.0] * len(rows)
    while len(chosen) < n_centers and rows:
        heights, height = [], 0.0
        for weight, square in zip(weights, squares, strict=True):
            height += weight * square
            heights.append(height)
        if not height > 0:
            break
        mark = next(draws) * height
        above = [place for place, reached in enumerate(heights) if reached > mark]
        left = [place for place, square in enumerate(squares) if square]
        chosen.append(min(above[0] if above else len(rows), left[-1]))
        apart = square_sums(rows, rows[chosen[-1]])
        if len(chosen) > 1:
            apart = [min(*pair) for pair in zip(squares, apart, strict=True)]
        squares = apart
    return [list(rows[place]) for place in chosen]


def owners(rows, centers):
    """Return the nearest center of each row; the first wins ties."""
    each = [square_sums(centers, row) for row in rows]
    return [squares.index(min(squares)) for squares in each]


def moved(rows, weights, centers, owner):
    """Return the weighted mean of each center's rows."""
    places = []
    for number, center in enumerate(centers):
        own = [place for place, name in enumerate(owner) if name == number]
        if not own:
            places.append(center)
            continue
        total = 0.0
        sums = [0.0] * len(center)
        for place in own:
            total += weights[place]
            sums = [s + weights[place] * cell for s, cell in zip(sums, rows[place], strict=True)]
        places.append([s / total for s in sums])
    return places


def clustered(rows, n_centers, weights, draws, most_steps):
    """Return the centers that have rows and the center of each row."""
    centers = first_centers(rows, n_centers, weights, draws)
    owner = owners(rows, centers)
    for _ in range(most_steps):
        centers = moved(rows, weights, centers, owner)
        before, owner = owner, owners(rows, centers)
        if before == owner:
            break
    kept = sorted(set(owner))
    return [centers[place] for place in kept], [kept.index(place) for place in owner]


def dealt(n_rows, share):
    """Return the number of centers for each class."""
    each = [1 for _ in n_rows]
    while sum(each) < math.floor(share * sum(n_rows) + 0.5):
        crowds = [n / centers for n, centers in zip(n_rows, each, strict=True)]
        each[crowds.index(max(crowds))] += 1
    return each


def cut(row, n_stretches, width):
    """Split a row into sections, the last padded with zeros."""
    wide = [*row, *[0.0] * (n_stretches * width - len(row))]
    return [wide[s * width : (s + 1) * width] for s in range(n_stretches)]


def stretch_square(stretch, entry):
    """Return the squared distance between a section and a codebook entry."""
    square = 0.0
    for cell, other in zip(stretch, entry, strict=True):
        square += (cell - other) * (cell - other)
    return square


def numbers(row, entries):
    """Return the index of the nearest entry for each section."""
    found = []
    for stretch, book in zip(cut(row, len(entries), len(entries[0][0])), entries, strict=True):
        squares = [stretch_square(stretch, entry) for entry in book]
        found.append(squares.index(min(squares)))
    return found


def asymmetric_nearest(codes, entries, queries, k, own):
    """Return positions and distances of the k nearest codes.

    Ties go to the earlier code.
    """
    positions, distances = [], []
    for asked, query in enumerate(queries):
        stretches = cut(query, len(entries), len(entries[0][0]))
        near = []
        for row, code in enumerate(codes):
            square = 0.0
            for stretch, book, number in zip(stretches, entries, code, strict=True):
                square += stretch_square(stretch, book[number])
            if own is None or own[asked] != row:
                near.append((square, row))
        found = sorted(near)[:k]
        positions.append([row for _, row in found])
        distances.append([math.sqrt(square) for square, _ in found])
    return positions, distances


def prototype_scores(query, projection, places, scores, gamma):
    """Return ProtoNN's score of each label for one query."""
    projected = [sum(w * cell for w, cell in zip(row, query, strict=True)) for row in projection]
    total = [0.0] * len(scores[0])
    for place, says in zip(places, scores, strict=True):
        square = sum((a - b) ** 2 for a, b in zip(projected, place, strict=True))
        near = math.exp(-(gamma**2) * square)
        total = [t + near * say for t, say in zip(total, says, strict=True)]
    return total


def prototype_loss(rows, targets, projection, places, scores, gamma):
    """Return the mean squared error of the scores of some rows."""
    total = 0.0
    for row, target in zip(rows, targets, strict=True):
        found = prototype_scores(row, projection, places, scores, gamma)
        total += sum((s - t) ** 2 for s, t in zip(found, target, strict=True))
    return total / len(rows)
