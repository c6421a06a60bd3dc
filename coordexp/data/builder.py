"""JSONL records -> what a template of bins reads: token strings or integers, as ``custom.coord_tokens`` says."""

from collections.abc import Mapping

from coordexp.coord_tokens.template_adapter import BoxTemplate, apply_coord_template_adapter
from coordexp.coord_tokens.validator import BBOX_FORMAT, annotate_coord_tokens
from coordexp.errors import DataError, kind_of

_BOX_KEYS = ("bbox", "bbox_2d", "bbox_coord_ints", "bbox_coord_tokens")


class JsonLinesBuilder:
    """Builds the samples of a chat template that is not ours (ms-swift's), and keeps the template from scaling them.

    The samples are JSONL records again: a file of them is training data for coordexp, too.
    """

    def __init__(self, template: BoxTemplate | None = None, *, enabled: bool, skip_bbox_norm: bool) -> None:
        """Patch the template, if there is one, in place.

        Args:
            template: has a method ``normalize_bbox``.
            enabled: ``custom.coord_tokens.enabled``: boxes become coord tokens, else bins.
            skip_bbox_norm: ``custom.coord_tokens.skip_bbox_norm``: ``normalize_bbox`` does nothing any more.

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
        objects = [dict(entry) if isinstance(entry, Mapping) else entry for entry in entries]
        built: dict[str, object] = {**record, "objects": objects}
        annotate_coord_tokens(built)

        annotated_key = "bbox_coord_tokens" if self.enabled else "bbox_coord_ints"
        built_objects: list[dict[str, object]] = []
        for entry in objects:
            other_fields = {name: value for name, value in entry.items() if name not in _BOX_KEYS}
            built_objects.append({**other_fields, "bbox": entry[annotated_key]})
        built["objects"] = built_objects
        built.pop("bbox_format", None)
        if not self.enabled:
            built["bbox_format"] = BBOX_FORMAT
        return built
