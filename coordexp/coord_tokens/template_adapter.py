"""Keep a training template from scaling boxes that are already bins."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from coordexp.errors import ConfigError


class BoxTemplate(Protocol):
    """A template (as ms-swift's) that scales the boxes of a sample in place before it writes them."""

    normalize_bbox: Callable[..., None]


@dataclass
class _KeepBoxes:
    """A ``normalize_bbox`` that leaves the boxes alone. It is a class so that a patched template can be pickled."""

    previous: Callable[..., None] | None  # what the instance itself had before; None if its class has the method

    def __call__(self, *args: object, **kwargs: object) -> None: ...


def keeps_boxes(*, enabled: bool, skip_bbox_norm: bool) -> bool:
    """Return whether ``custom.coord_tokens`` says that data may hold bins, and that nothing scales them."""
    return enabled and skip_bbox_norm


def apply_coord_template_adapter(template: BoxTemplate, *, enabled: bool, skip_bbox_norm: bool) -> None:
    """Make ``template.normalize_bbox`` a no-op if :func:`keeps_boxes`, and otherwise restore it, in place.

    Coord tokens and norm1000 bins are final: scaling them by 1000 / width once more would move every box. A second call
    with the same flags changes nothing.

    Raises:
        ConfigError: if the template has no method ``normalize_bbox``.
    """
    if not callable(getattr(template, "normalize_bbox", None)):
        raise ConfigError(f"{type(template).__name__} has no method normalize_bbox; expected a chat template object")
    current = template.normalize_bbox
    if keeps_boxes(enabled=enabled, skip_bbox_norm=skip_bbox_norm):
        if not isinstance(current, _KeepBoxes):
            template.normalize_bbox = _KeepBoxes(vars(template).get("normalize_bbox"))
    elif isinstance(current, _KeepBoxes):
        del template.normalize_bbox
        if current.previous is not None:
            template.normalize_bbox = current.previous
