"""The size to which Qwen's image processors resize a picture.

The number of image tokens follows from it, and some models write their boxes in pixels of the resized copy.
"""

import math


def smart_resize(width: float, height: float, *, factor: int, low: int, high: int) -> tuple[int, int]:
    """Return width and height in pixels of the copy that a model sees.

    Both are multiples of ``factor``, and their area is within limits. Equal to ``smart_resize`` of transformers, which
    takes the height first and refuses a picture with one side 200 times the other.

    Args:
        width: width of the picture, in pixels.
        height: height of the picture, in pixels.
        factor: side of the square that becomes one token, in pixels.
        low: least area, in pixels; a smaller copy is enlarged.
        high: largest area, in pixels; a larger copy is shrunk, but no side below ``factor``.
    """
    # A short side may round to 0 here. The area is then 0, which is below every limit, so the copy is enlarged.
    columns = round(width / factor) * factor
    rows = round(height / factor) * factor
    if columns * rows > high:
        shrink = math.sqrt(height * width / high)
        columns = max(factor, math.floor(width / shrink / factor) * factor)
        rows = max(factor, math.floor(height / shrink / factor) * factor)
    elif columns * rows < low:
        grow = math.sqrt(low / (height * width))
        columns = math.ceil(width * grow / factor) * factor
        rows = math.ceil(height * grow / factor) * factor
    return columns, rows
