"""Naive scatter matrices within and between the classes of a client."""


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
