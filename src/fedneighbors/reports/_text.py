"""Text of a record as a picture or a terminal can show it."""


def printable(text: str, longest: int = 40) -> str:
    r"""Text without control characters, cut to a length that there is room for.

    Examples
    --------
    >>> printable("a\tb"), printable("abcdefgh", 5)
    ('a b', 'abcd…')
    """
    shown = "".join(letter if letter.isprintable() else " " for letter in text)
    return shown if len(shown) <= longest else shown[: longest - 1] + "…"
