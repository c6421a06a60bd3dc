"""JSONL records -> what a template of bins reads: token strings or integers, as ``custom.coord_tokens`` says."""

from collections.abc import Mapping

from coordexp.coord_tokens.template_adapter import BoxTemplate, apply_coord_template_adapter
from coordexp.coord_tokens.validator import BBOX_FORMAT, annotate_coord_tokens
from coordexp.errors import DataError, kind_of

_NAMES = ("bbox", "bbox_2d", "bbox_coord_ints", "bbox_coord_tokens")


class JsonLinesBuilder:
    """Builds the samples of a chat template that is not ours (ms-swift's), and keeps it from scaling them.

    The samples are JSONL records again: a file of them is training data for coordexp, too.
    """

    def __init__(self, template: BoxTemplate | None = None, *, enabled: bool, skip_bbox_norm: bool) -> None:
        """Patch the template, if there is one, in place; the switches are those of ``custom.coord_tokens``.

        Raises:
            ConfigError: if the template has no method ``normalize_bbox``.
        """
        self.enabled = enabled
        if template is not None:
            apply_coord_template_adapter(template, enabled=enabled, skip_bbox_norm=skip_bbox_norm)

    def build(self, record: Mapping[str, object]) -> dict[str, object]:
        """Return a copy of a record with each box as four coord tokens, or bins and ``bbox_format: norm1000``.

        Raises:
            DataError: as :func:`coordexp.coord_tokens.validator.annotate_coord_tokens`.
        """
        entries = record.get("objects")
        if not isinstance(entries, list):
            raise DataError(f"objects is {kind_of(entries)}, expected a list")
        objects = [dict(item) if isinstance(item, Mapping) else item for item in entries]
        annotated: dict[str, object] = {**record, "objects": objects}
        annotate_coord_tokens(annotated)
        wanted = "bbox_coord_tokens" if self.enabled else "bbox_coord_ints"
        annotated["objects"] = [
            {**{name: value for name, value in item.items() if name not in _NAMES}, "bbox": item[wanted]}
            for item in objects
        ]
        annotated.pop("bbox_format", None)
        return annotated if self.enabled else {**annotated, "bbox_format": BBOX_FORMAT}
