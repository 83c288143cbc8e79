"""Naive scatter matrices of a client's classes, and linear discriminant analysis."""

import math


def scatter_matrices(rows, labels):
    """Return the within-class and between-class scatter as lists of lists."""
    n = len(rows[0]) if rows else 0
    within = [[0.0] * n for _ in range(n)]
    between = [[0.0] * n for _ in range(n)]
    overall_mean = _mean(rows)
    for label in sorted(set(labels)):
        class_rows = [
            row for row, row_label in zip(rows, labels, strict=True) if row_label == label
        ]
        class_mean = _mean(class_rows)
        for row in class_rows:
            for i in range(n):
                for j in range(n):
                    within[i][j] += (row[i] - class_mean[i]) * (row[j] - class_mean[j])
                    between[i][j] += (class_mean[i] - overall_mean[i]) * (
                        class_mean[j] - overall_mean[j]
                    )
    return within, between


def _mean(rows):
    return [sum(column) / len(rows) for column in zip(*rows, strict=True)]


def lda_posterior(rows, labels, query, shrinkage):
    """Return the posterior of a linear discriminant analysis as a list, by Gauss elimination.

    Priors are the shares of the classes, which are 0, 1 and so on.
    """
    n, n_columns = len(rows), len(rows[0])
    within, _ = scatter_matrices(rows, labels)
    mean_variance = sum(within[i][i] for i in range(n_columns)) / n / n_columns
    covariance = [
        [
            (1 - shrinkage) * within[i][j] / n + (shrinkage * mean_variance if i == j else 0.0)
            for j in range(n_columns)
        ]
        for i in range(n_columns)
    ]
    distances, shares = [], []
    for label in sorted(set(labels)):
        own = [row for row, other in zip(rows, labels, strict=True) if other == label]
        offset = [a - b for a, b in zip(query, _mean(own), strict=True)]
        solved = _solve(covariance, offset)
        distances.append(sum(a * b for a, b in zip(offset, solved, strict=True)))
        shares.append(len(own) / n)
    densities = [
        share * math.exp((min(distances) - distance) / 2)
        for share, distance in zip(shares, distances, strict=True)
    ]
    return [density / sum(densities) for density in densities]


def _solve(matrix, vector):
    """Return the solution of a linear system by elimination with pivots."""
    n = len(vector)
    table = [[*row, value] for row, value in zip(matrix, vector, strict=True)]
    for i in range(n):
        pivot = max(range(i, n), key=lambda r: abs(table[r][i]))
        table[i], table[pivot] = table[pivot], table[i]
        for r in range(n):
            if r != i:
                factor = table[r][i] / table[i][i]
                table[r] = [a - factor * b for a, b in zip(table[r], table[i], strict=True)]
    return [table[i][n] / table[i][i] for i in range(n)]
