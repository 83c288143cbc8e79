"""A small grayscale image as the text of one table cell.

The text is ``"ROWSxCOLUMNS:"`` and base64 of the pixels. Pixels run row by row, one byte each,
0 black to 255 white.
"""

import base64
import binascii
import re
from collections.abc import Iterable

from fedneighbors.errors import RecordError

_CELL = re.compile(r"([1-9]\d{0,3})x([1-9]\d{0,3}):([A-Za-z0-9+/=]*)")


def encode_pixels(image: Iterable[Iterable[int]]) -> str:
    """Text of an image for a cell of a record's table.

    Parameters
    ----------
    image : rows of pixels, such as an integer array of shape (n_rows, n_columns)
        Gray values 0 (black) to 255 (white).

    Raises
    ------
    ValueError
        If a value lies outside 0 to 255, or rows differ in length, or there is no pixel.

    Examples
    --------
    >>> encode_pixels([[0, 255], [128, 64]])
    '2x2:AP+AQA=='
    """
    rows = [bytes(int(pixel) for pixel in row) for row in image]
    widths = {len(row) for row in rows}
    if len(widths) != 1 or not rows[0]:
        raise ValueError(f"an image has rows of one length, at least 1, got {sorted(widths)}")
    return f"{len(rows)}x{len(rows[0])}:{base64.b64encode(b''.join(rows)).decode('ascii')}"


def decode_pixels(cell: object) -> list[bytes]:
    """Rows of an image that `encode_pixels` wrote, one byte per pixel.

    Raises
    ------
    RecordError
        If the cell holds no image.

    Examples
    --------
    >>> [list(row) for row in decode_pixels("2x2:AP+AQA==")]
    [[0, 255], [128, 64]]
    """
    match = _CELL.fullmatch(cell) if isinstance(cell, str) else None
    if match is None:
        raise RecordError(f"expected an image as 'ROWSxCOLUMNS:base64', found {cell!r:.40}")
    n_rows, n_columns = int(match[1]), int(match[2])
    try:
        pixels = base64.b64decode(match[3], validate=True)
    except binascii.Error as error:
        raise RecordError(f"expected the pixels of an image in base64: {error}") from error
    if len(pixels) != n_rows * n_columns:
        raise RecordError(f"expected {n_rows} x {n_columns} pixels, found {len(pixels)}")
    return [pixels[row * n_columns : (row + 1) * n_columns] for row in range(n_rows)]
