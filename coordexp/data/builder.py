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
        """Keep the switches, and patch the template as they say.

        Args:
            template: what the samples are given to, changed in place; None if there is none here.
            enabled: ``custom.coord_tokens.enabled``: token strings; otherwise integers in 0..999.
            skip_bbox_norm: ``custom.coord_tokens.skip_bbox_norm``.

        Raises:
            ConfigError: if the template has no method ``normalize_bbox``.
        """
        self.enabled = enabled
        if template is not None:
            apply_coord_template_adapter(template, enabled=enabled, skip_bbox_norm=skip_bbox_norm)

    def build(self, record: Mapping[str, object]) -> dict[str, object]:
        """Return a record with every box as four coord tokens, or as four bins and ``bbox_format: norm1000``.

        Args:
            record: an image's record, its boxes in any form; left as it is.

        Raises:
            DataError: as :func:`coordexp.coord_tokens.validator.annotate_coord_tokens`.
        """
        entries = record.get("objects")
        if not isinstance(entries, list):
            raise DataError(f"objects is {kind_of(entries)}, expected a list")
        annotated: dict[str, object] = dict(record)
        objects = [dict(item) if isinstance(item, Mapping) else item for item in entries]
        annotated["objects"] = objects
        annotate_coord_tokens(annotated)
        wanted = "bbox_coord_tokens" if self.enabled else "bbox_coord_ints"
        annotated["objects"] = [
            {**{name: value for name, value in item.items() if name not in _NAMES}, "bbox": item[wanted]}
            for item in objects
        ]
        annotated.pop("bbox_format", None)
        return annotated if self.enabled else {**annotated, "bbox_format": BBOX_FORMAT}
