"""Keep a training template from scaling boxes that are bins already."""

from collections.abc import Callable
from typing import Protocol

from coordexp.errors import ConfigError


class BoxTemplate(Protocol):
    """A template (as ms-swift's) that scales the boxes of a sample in place before it writes them."""

    normalize_bbox: Callable[..., None]


class _KeepBoxes:
    """Stands in for ``normalize_bbox`` and does nothing; a class, so that a patched template pickles.

    Attributes:
        own: the method that the instance itself had; None where its class has it.
    """

    def __init__(self, own: Callable[..., None] | None) -> None:
        self.own = own

    def __call__(self, *args: object, **kwargs: object) -> None:
        """Leave the boxes alone."""


def keeps_boxes(*, enabled: bool, skip_bbox_norm: bool) -> bool:
    """Return whether boxes that are bins already stay as they are: only then may data hold them.

    Args:
        enabled: ``custom.coord_tokens.enabled``.
        skip_bbox_norm: ``custom.coord_tokens.skip_bbox_norm``.
    """
    return enabled and skip_bbox_norm


def apply_coord_template_adapter(template: BoxTemplate, *, enabled: bool, skip_bbox_norm: bool) -> None:
    """Make ``template.normalize_bbox`` a no-op, or what it was before.

    Coord tokens and norm1000 bins are final; scaling them by 1000 / width once more would move
    every box. A second call with the same flags changes nothing.

    Args:
        template: the template, changed in place.
        enabled: see :func:`keeps_boxes`: if it is true the method is replaced, otherwise a replaced one is
            restored and an untouched one left alone.
        skip_bbox_norm: see there.

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
        if current.own is not None:
            template.normalize_bbox = current.own
