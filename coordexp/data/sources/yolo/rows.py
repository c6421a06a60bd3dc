"""A row of YOLO's labels -> class and box; and what rows hold that are longer than a box: polygons or key points.

Both are numbers behind a class. ``0 x y w h px py px py`` (pose) and ``0 x y x y x y x y`` (segment) have the same
length. If ``kpt_shape`` does not say which they are, the rows themselves must. Read as a polygon, the box around a pose
would be a box around its centre, its size and its points.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from coordexp.errors import DataError, show

RowLayout = Literal["plain", "points", "guessed points"]
"""Boxes and polygons; key points behind each box, as ``kpt_shape`` says; or key points, as the rows show."""
Corners = tuple[float, float, float, float]

_BOX_COLUMNS = 5  # class, centre, width and height
_MOST_OF_A_BOX = 6  # the same, and how sure a model was
_FARTHEST = 0.5  # of a side beyond the picture: farther numbers are no fractions
_SLACK = 0.01  # of a side, by which a point may lie beside its box, and a box beyond its picture
_SHARE_INSIDE = 0.9  # of the boxes of rows that lie inside their pictures, if rows are boxes with points
_FAR = 2.0  # times the spread of the other points: so far the second point of a polygon is never from the first
_VISIBILITIES = (0.0, 1.0, 2.0)
_FEWEST_ROWS = 4  # so many polygons hardly have the same number of points by chance
_QUADRANGLE = 9  # columns of a polygon of four points, the most common one of a constant length


def read_row(line: str, names: Sequence[str], size: tuple[int, int], layout: RowLayout) -> tuple[str, Corners]:
    """Return the class of a row and its corners in pixels, in the order in which the row has them.

    Args:
        line: the row.
        names: of the classes; empty if nothing names them.
        size: width and height of the picture in pixels.
        layout: what rows of the set hold.

    Raises:
        DataError: if the row cannot be read so.
    """
    numbers = _numbers(line, layout)
    class_number = int(numbers[0])
    if names and class_number >= len(names):
        raise DataError(f"class {class_number} is not among the {len(names)} that are named")
    if len(numbers) <= _MOST_OF_A_BOX:
        x, y, width, height = numbers[1:_BOX_COLUMNS]
        corners = x - width / 2, y - height / 2, x + width / 2, y + height / 2
    else:
        xs, ys = numbers[1::2], numbers[2::2]
        corners = min(xs), min(ys), max(xs), max(ys)
    if not all(-_FARTHEST <= value <= 1 + _FARTHEST for value in corners):
        raise DataError(f"{show(line)}: expected fractions of the picture, in [0, 1]")
    left, top, right, bottom = (round(value * side, 6) for value, side in zip(corners, size * 2, strict=True))
    name = names[class_number] if names else f"class {class_number}"
    return name, (left, top, right, bottom)


def _numbers(line: str, layout: RowLayout) -> list[float]:
    """Return class and box of a row, or class and points of a polygon; key points are left out."""
    try:
        numbers = [float(text) for text in line.split()]
    except ValueError:
        raise DataError(f"{show(line)} is no line of numbers: class, centre, width and height") from None
    if layout != "plain":
        numbers = numbers[:_BOX_COLUMNS]
    if len(numbers) < _BOX_COLUMNS or numbers[0] % 1 or numbers[0] < 0:
        raise DataError(f"{show(line)}: expected a class and four numbers, or a class and the points of a polygon")
    if len(numbers) > _MOST_OF_A_BOX and len(numbers) % 2 == 0:
        raise DataError(
            f"{show(line)}: expected a class and four numbers, or a class and the points of a polygon; key points "
            "behind the box need kpt_shape in data.yaml"
        )
    return numbers


def guess_layout(rows: Sequence[Sequence[float]], *, where: Path) -> RowLayout:
    """Return what rows that are longer than a box hold, if no ``kpt_shape`` says it.

    Rows with key points have one length, and their own boxes (columns 2 to 5) lie inside their pictures. They are read
    if all points lie in these boxes as well. Rows of polygons have many lengths, or are rectangles, or are no boxes
    inside their pictures.

    Args:
        rows: of a whole set, or of a good part of it.
        where: the set, for the error.

    Raises:
        DataError: if the rows may be key points, and nothing proves it.
    """
    lengths = {len(row) for row in rows}
    if len(lengths) != 1:
        return "plain"
    table = np.array(rows, np.float64)
    num_after_box = table.shape[1] - _BOX_COLUMNS
    for point_size in (3, 2):
        if num_after_box % point_size or not _may_be_points(table, point_size):
            continue
        if _all_inside(table, point_size) and (point_size == 3 or _is_proved(table)):
            return "guessed points"
        raise DataError(
            f"{where}: rows of {table.shape[1]} columns look like a box with key points behind it, but not all points "
            "lie in their box, or a polygon could look so, too. Say which in data.yaml: kpt_shape: "
            f"[{num_after_box // point_size}, {point_size}] for key points (the box is then read), kpt_shape: null for "
            "polygons"
        )
    return "plain"


def _may_be_points(table: NDArray[np.float64], point_size: int) -> bool:
    """Return whether rows may be boxes with key points.

    Args:
        table: ``[N, 5 + points * point_size]``.
        point_size: 2 for x and y, 3 for x, y and visibility.
    """
    centre, size = table[:, 1:3], table[:, 3:5]
    is_inside = np.all((centre - size / 2 >= -_SLACK) & (centre + size / 2 <= 1 + _SLACK) & (size >= 0), axis=1)
    if is_inside.mean() < _SHARE_INSIDE:
        return False
    if point_size == 3:
        return bool(np.isin(table[:, 7::3], _VISIBILITIES).all())
    return table.shape[1] != _QUADRANGLE or not _are_parallelograms(table)


def _are_parallelograms(table: NDArray[np.float64]) -> bool:
    """Return whether rows of four points are rectangles, upright or turned, as most quadrangles are."""
    first, second, third, fourth = (table[:, column : column + 2] for column in (1, 3, 5, 7))
    return bool(np.all(np.abs(first + third - second - fourth) <= _SLACK))


def _is_proved(table: NDArray[np.float64]) -> bool:
    """Return whether rows whose points all lie in their own boxes can hardly be polygons."""
    if table.shape[1] > _QUADRANGLE and len(table) >= _FEWEST_ROWS:
        return True
    # The second point of a polygon is near its other points. A width and a height, taken for a point, lie anywhere.
    centre, size = table[:, 1:3], table[:, 3:5]
    other_points = np.concatenate([table[:, None, 1:3], table[:, 5:].reshape(len(table), -1, 2)], axis=1)
    spread = np.linalg.norm(other_points.max(axis=1) - other_points.min(axis=1), axis=1)
    return bool(np.any(np.linalg.norm(size - centre, axis=1) > _FAR * spread))


def _all_inside(table: NDArray[np.float64], point_size: int) -> bool:
    """Return whether all points of rows lie in the rows' own boxes; unlabelled points (0, 0) do not count."""
    centre, size = table[:, None, 1:3], table[:, None, 3:5]
    points = table[:, 5:].reshape(len(table), -1, point_size)
    xy = points[..., :2]
    is_labelled = points[..., 2] > 0 if point_size == 3 else np.any(xy != 0, axis=-1)
    is_inside = np.all(np.abs(xy - centre) <= size / 2 + _SLACK, axis=-1)
    return bool(np.all(is_inside | ~is_labelled))
