"""Shakespeare's roles as clients: windows of their speeches, and the next character."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt

from fedneighbors.datasets._dataset import Dataset
from fedneighbors.datasets._reading import read_columns
from fedneighbors.errors import DataError, MissingDataError
from fedneighbors.neural._architectures import ALPHABET

SPEECHES_FILE = "text/shakespeare_bosak8.csv.gz"
WINDOW_LENGTH = 80
MIN_ROWS = 100
LINE_SEPARATOR = " / "
"""Separator of the lines of a speech in the file."""

Tokens = npt.NDArray[np.uint8]


def encode_text(text: str) -> Tokens:
    """Return the token of each character.

    Parameters
    ----------
    text : str
        Characters of :data:`~fedneighbors.neural._architectures.ALPHABET`.

    Returns
    -------
    uint8 array of shape (n_characters,)

    Raises
    ------
    DataError
        If a character is not in the alphabet; the message contains it.

    Examples
    --------
    >>> encode_text("be!").tolist()
    [54, 57, 2]
    """
    unknown = sorted(set(text) - set(ALPHABET))
    if unknown:
        raise DataError(
            f"expected characters of the alphabet {ALPHABET!r}, got {unknown[:5]}; replace them"
        )
    positions = {character: position for position, character in enumerate(ALPHABET)}
    return np.array([positions[character] for character in text], np.uint8)


def decode_tokens(tokens: npt.ArrayLike) -> str:
    """Return the characters of tokens.

    Parameters
    ----------
    tokens : array-like of int
        From 0 up to the length of the alphabet.

    Examples
    --------
    >>> decode_tokens([54, 57, 2])
    'be!'
    """
    return "".join(ALPHABET[int(token)] for token in np.asarray(tokens).ravel())


def split_windows(
    tokens: Tokens, *, length: int = WINDOW_LENGTH, stride: int = 1
) -> tuple[Tokens, npt.NDArray[np.int64]]:
    """Split a text into windows, each labelled with the next token.

    Parameters
    ----------
    tokens : uint8 array of shape (n_tokens,)
        Tokens of a text in order.
    length : int
        Number of tokens of a window.
    stride : int
        Number of tokens from the start of a window to that of the next.

    Returns
    -------
    x : uint8 array of shape (n_windows, length)
        Windows in the order of the text; empty if the text is not longer than a window.
    y : int64 array of shape (n_windows,)
        The token after each window.

    Raises
    ------
    ValueError
        If ``length`` or ``stride`` is below 1.
    """
    if length < 1 or stride < 1:
        raise ValueError(f"expected length and stride of 1 or more, got {length} and {stride}")
    if len(tokens) <= length:
        return np.empty((0, length), np.uint8), np.empty(0, np.int64)
    views = np.lib.stride_tricks.sliding_window_view(tokens, length + 1)[::stride]
    return views[:, :-1].copy(), views[:, -1].astype(np.int64)


def read_speeches(folder: Path) -> dict[str, str]:
    """Read all speeches of each role, in order.

    Parameters
    ----------
    folder : Path
        The data folder.

    Returns
    -------
    dict of str to str
        From play and speaker, such as ``"hamlet/OPHELIA"``, to the speeches in the order of the
        play, with line ends in and between them. Rows without a speaker are omitted.

    Raises
    ------
    MissingDataError
        If the file does not exist.
    DataError
        If the file is damaged, or lacks a column.
    """
    path = folder / SPEECHES_FILE
    if not path.is_file():
        raise MissingDataError(f"there is no file {path}; add it or choose another data set")
    columns = ("play", "speaker", "text")
    table = read_columns(path, nominal=columns)
    table.require(columns)
    speeches: dict[str, list[str]] = {}
    for play, speaker, text in zip(*(table.columns[name] for name in columns), strict=True):
        if play and speaker and text:
            speeches.setdefault(f"{play}/{speaker}", []).append(text.replace(LINE_SEPARATOR, "\n"))
    return {role: "\n".join(texts) for role, texts in speeches.items()}


def roles_size(folder: Path) -> tuple[int, int, int]:
    """Return the numbers of rows, features and classes of :func:`load_roles`.

    Parameters
    ----------
    folder : Path
        The data folder.

    Raises
    ------
    MissingDataError
        If the file does not exist.
    DataError
        If it is damaged.
    """
    labels_of_roles = [text[WINDOW_LENGTH:] for text in read_speeches(folder).values()]
    long_roles = [labels for labels in labels_of_roles if len(labels) >= MIN_ROWS]
    return sum(map(len, long_roles)), WINDOW_LENGTH, len(set("".join(long_roles)))


def load_roles(
    folder: Path, *, length: int = WINDOW_LENGTH, stride: int = 1, min_rows: int = MIN_ROWS
) -> Dataset:
    """Load the windows of all long roles, labelled with the next character.

    Parameters
    ----------
    folder : Path
        The data folder; its file ``text/shakespeare_bosak8.csv.gz`` contains the speeches of eight
        plays.
    length, stride
        See :func:`split_windows`.
    min_rows : int
        Minimum number of windows of a role.

    Returns
    -------
    Dataset
        ``x`` contains tokens, ``y`` the next token, parties are roles. Rows of a role are
        consecutive and in the order of the play, which
        :func:`~fedneighbors.partition.ordered_roles` uses to split them.

    Raises
    ------
    MissingDataError
        If the file does not exist.
    DataError
        If it is damaged, or all roles are too short.

    References
    ----------
    .. [1] McMahan et al., "Communication-Efficient Learning of Deep Networks from Decentralized
       Data", AISTATS 2017, section 3.
    """
    windows = _split_roles(read_speeches(folder), length, stride)
    long_roles = {role: (x, y) for role, (x, y) in windows.items() if len(y) >= max(min_rows, 1)}
    if not long_roles:
        raise DataError(
            f"no role of {folder / SPEECHES_FILE} has {min_rows} windows of {length} characters; "
            "lower min_rows"
        )
    return Dataset(
        "shakespeare",
        np.concatenate([x for x, _ in long_roles.values()]),
        np.concatenate([y for _, y in long_roles.values()]),
        tuple(f"character-{position}" for position in range(length)),
        str(folder / SPEECHES_FILE),
        parties=np.repeat(
            np.array([*long_roles], np.str_), [len(y) for _, y in long_roles.values()]
        ),
    )


def _split_roles(
    speeches: Mapping[str, str], length: int, stride: int
) -> dict[str, tuple[Tokens, npt.NDArray[np.int64]]]:
    return {
        role: split_windows(encode_text(text), length=length, stride=stride)
        for role, text in speeches.items()
    }
