"""512 bits as one Python integer, with the lowest word first."""

WORDS = 8
ALL = (1 << 512) - 1


def load(words, index):
    """Return eight words as one integer."""
    return sum(int(word) << (64 * i) for i, word in enumerate(words[index : index + WORDS]))


def split_words(value):
    """Return the eight words of an integer."""
    return [(value >> (64 * i)) & ((1 << 64) - 1) for i in range(WORDS)]


def fill(word):
    """Return an integer of eight equal words."""
    return sum(int(word) << (64 * i) for i in range(WORDS))
