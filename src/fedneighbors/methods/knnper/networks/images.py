"""How networks for images read a row: height and width, with channels before them or without."""

from torch import nn

__all__ = ["image_sides", "with_channels"]


def image_sides(shape: tuple[int, ...], *, least: int) -> tuple[int, int, int]:
    """Return channels, height and width of an image.

    Parameters
    ----------
    shape : tuple of int
        Of a row: (height, width) or (channels, height, width).
    least : int
        Pixels that a side must have.

    Raises
    ------
    ValueError
        If rows of this shape are no images, or too small.
    """
    if len(shape) not in (2, 3):
        raise ValueError(
            f"expected rows of shape (height, width) or (channels, height, width), got {shape}; "
            "reshape flat rows, for example x.reshape(-1, 28, 28)"
        )
    channels, height, width = (1, *shape) if len(shape) == 2 else shape
    if channels < 1 or min(height, width) < least:
        raise ValueError(
            f"expected images of {least} x {least} pixels or more, got rows of shape {shape}"
        )
    return channels, height, width


def with_channels(shape: tuple[int, ...]) -> nn.Module:
    """Return the layer that gives images without channels a single one."""
    return nn.Unflatten(1, (1, shape[0])) if len(shape) == 2 else nn.Identity()
