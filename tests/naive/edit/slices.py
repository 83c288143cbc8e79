"""Edit distance by the Wagner-Fischer table, and bit planes set bit by bit."""


def edit_distance(first, second):
    """Return the least number of insertions, deletions and replacements."""
    above = list(range(len(second) + 1))
    for i, a in enumerate(first, 1):
        row = [i]
        for j, b in enumerate(second, 1):
            row.append(min(above[j] + 1, row[-1] + 1, above[j - 1] + (a != b)))
        above = row
    return above[-1]


def bit_planes(strings, n_bits):
    """Return the words of one group of strings.

    Each row and bit has eight words for 64 strings each.
    """
    rows = max((len(string) for string in strings), default=0)
    words = [0] * (rows * n_bits * 8)
    for lane, string in enumerate(strings):
        for row, code in enumerate(string):
            for bit in range(n_bits):
                if code >> bit & 1:
                    words[(row * n_bits + bit) * 8 + lane // 64] |= 1 << (lane % 64)
    return words
