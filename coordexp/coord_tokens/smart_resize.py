"""The size to which Qwen's image processors resize a picture: what its tokens and some models' boxes are counted in."""

import math


def smart_resize(width: float, height: float, *, factor: int, low: int, high: int) -> tuple[int, int]:
    """Return width and height of the copy that a model sees: multiples of ``factor``, with an area within limits.

    Equal to ``smart_resize`` of transformers, which takes the height first and refuses a side 200 times the other.

    Args:
        width: of the picture, in pixels.
        height: of the picture, in pixels.
        factor: pixels of a side of what becomes one token.
        low: the least area, in pixels; a smaller copy grows.
        high: the largest area, in pixels; a larger copy shrinks, to one factor a side at the least.
    """
    # A short side may round to nothing here: the area is then 0, below every limit, and the copy grows.
    columns, rows = round(width / factor) * factor, round(height / factor) * factor
    if columns * rows > high:
        shrink = math.sqrt(height * width / high)
        columns = max(factor, math.floor(width / shrink / factor) * factor)
        rows = max(factor, math.floor(height / shrink / factor) * factor)
    elif columns * rows < low:
        grow = math.sqrt(low / (height * width))
        columns = math.ceil(width * grow / factor) * factor
        rows = math.ceil(height * grow / factor) * factor
    return columns, rows
