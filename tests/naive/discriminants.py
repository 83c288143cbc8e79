"""Naive scatter matrices within and between the classes of a client."""


def scatter(columns, labels):
    """Return the within-class and between-class scatter as lists of lists."""
    n = len(columns[0]) if columns else 0
    within = [[0.0] * n for _ in range(n)]
    between = [[0.0] * n for _ in range(n)]
    whole = _mean(columns)
    for label in sorted(set(labels)):
        own = [row for row, of in zip(columns, labels, strict=True) if of == label]
        middle = _mean(own)
        for row in own:
            for i in range(n):
                for j in range(n):
                    within[i][j] += (row[i] - middle[i]) * (row[j] - middle[j])
                    between[i][j] += (middle[i] - whole[i]) * (middle[j] - whole[j])
    return within, between


def _mean(rows):
    return [sum(column) / len(rows) for column in zip(*rows, strict=True)]
