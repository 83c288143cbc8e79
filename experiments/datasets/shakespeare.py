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
LENGTH = 80
MIN_ROWS = 100
LINE_END = " / "
"""How the file joins the lines of a speech."""

Tokens = npt.NDArray[np.uint8]


def encoded(text: str) -> Tokens:
    """Return the token of each character.

    Parameters
    ----------
    text : str
        Of characters in :data:`~fedneighbors.neural._architectures.ALPHABET`.

    Returns
    -------
    uint8 array of shape (n_characters,)

    Raises
    ------
    DataError
        If a character is not in the alphabet; it is named.

    Examples
    --------
    >>> encoded("be!").tolist()
    [54, 57, 2]
    """
    foreign = sorted(set(text) - set(ALPHABET))
    if foreign:
        raise DataError(
            f"expected characters of the alphabet {ALPHABET!r}, got {foreign[:5]}; replace them"
        )
    places = {character: place for place, character in enumerate(ALPHABET)}
    return np.array([places[character] for character in text], np.uint8)


def decoded(tokens: npt.ArrayLike) -> str:
    """Return the characters of tokens.

    Parameters
    ----------
    tokens : array-like of int
        From 0 up to the length of the alphabet.

    Examples
    --------
    >>> decoded([54, 57, 2])
    'be!'
    """
    return "".join(ALPHABET[int(token)] for token in np.asarray(tokens).ravel())


def windows(
    tokens: Tokens, *, length: int = LENGTH, stride: int = 1
) -> tuple[Tokens, npt.NDArray[np.int64]]:
    """Return windows of a text, and the token after each.

    Parameters
    ----------
    tokens : uint8 array of shape (n_tokens,)
        A text in the order in which it is read.
    length : int
        Tokens of a window.
    stride : int
        Tokens from the begin of a window to that of the next.

    Returns
    -------
    x : uint8 array of shape (n_windows, length)
        In the order of the text; empty if it is no longer than one window.
    y : int64 array of shape (n_windows,)

    Raises
    ------
    ValueError
        If ``length`` or ``stride`` is below 1.
    """
    if length < 1 or stride < 1:
        raise ValueError(f"expected length and stride of 1 or more, got {length} and {stride}")
    if len(tokens) <= length:
        return np.empty((0, length), np.uint8), np.empty(0, np.int64)
    every = np.lib.stride_tricks.sliding_window_view(tokens, length + 1)[::stride]
    return every[:, :-1].copy(), every[:, -1].astype(np.int64)


def spoken(folder: Path) -> dict[str, str]:
    """Return all speeches of each role, in order.

    Parameters
    ----------
    folder : Path
        The data folder.

    Returns
    -------
    dict of str to str
        Play and speaker, such as ``"hamlet/OPHELIA"``, to the speeches in the order of the play,
        with line ends in and between them. Speeches of nobody are left out.

    Raises
    ------
    MissingDataError
        If the file is not there.
    DataError
        If it is damaged, or lacks a column.
    """
    path = folder / SPEECHES_FILE
    if not path.is_file():
        raise MissingDataError(f"there is no file {path}; put it there or choose another data set")
    columns = ("play", "speaker", "text")
    table = read_columns(path, nominal=columns)
    table.require(columns)
    said: dict[str, list[str]] = {}
    for play, speaker, text in zip(*(table.columns[name] for name in columns), strict=True):
        if play and speaker and text:
            said.setdefault(f"{play}/{speaker}", []).append(text.replace(LINE_END, "\n"))
    return {role: "\n".join(speeches) for role, speeches in said.items()}


def roles_size(folder: Path) -> tuple[int, int, int]:
    """Return the numbers of rows, features and classes of :func:`load_roles`.

    Parameters
    ----------
    folder : Path
        The data folder.

    Raises
    ------
    MissingDataError
        If the file is not there.
    DataError
        If it is damaged.
    """
    follow = [said[LENGTH:] for said in spoken(folder).values()]
    kept = [characters for characters in follow if len(characters) >= MIN_ROWS]
    return sum(map(len, kept)), LENGTH, len(set("".join(kept)))


def load_roles(
    folder: Path, *, length: int = LENGTH, stride: int = 1, min_rows: int = MIN_ROWS
) -> Dataset:
    """Return the windows of all long roles, labelled with the next character.

    Parameters
    ----------
    folder : Path
        The data folder, which holds ``text/shakespeare_bosak8.csv.gz``: speeches of eight plays.
    length, stride
        As :func:`windows` takes them.
    min_rows : int
        Windows that a role needs to be a client.

    Returns
    -------
    Dataset
        ``x`` holds tokens, ``y`` is the token that follows, parties are roles. Rows of a role stand
        together, in the order in which they are said; :func:`~fedneighbors.partition.ordered_roles`
        splits them by it.

    Raises
    ------
    MissingDataError
        If the file is not there.
    DataError
        If it is damaged, or every role has too few speeches.

    References
    ----------
    .. [1] McMahan et al., "Communication-Efficient Learning of Deep Networks from Decentralized
       Data", AISTATS 2017, section 3.
    """
    made = _rows(spoken(folder), length, stride)
    kept = {role: (x, y) for role, (x, y) in made.items() if len(y) >= max(min_rows, 1)}
    if not kept:
        raise DataError(
            f"no role of {folder / SPEECHES_FILE} has {min_rows} windows of {length} characters; "
            "lower min_rows"
        )
    return Dataset(
        "shakespeare",
        np.concatenate([x for x, _ in kept.values()]),
        np.concatenate([y for _, y in kept.values()]),
        tuple(f"character-{place}" for place in range(length)),
        str(folder / SPEECHES_FILE),
        parties=np.repeat(list(kept), [len(y) for _, y in kept.values()]).astype(np.str_),
    )


def _rows(
    said: Mapping[str, str], length: int, stride: int
) -> dict[str, tuple[Tokens, npt.NDArray[np.int64]]]:
    return {
        role: windows(encoded(text), length=length, stride=stride) for role, text in said.items()
    }
