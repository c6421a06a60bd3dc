"""The template adapter: off means untouched, on means boxes stay as they are."""

import pytest

from coordexp.coord_tokens.template_adapter import apply_coord_template_adapter


class Template:
    """Scales boxes in place, as ms-swift's does for norm1000."""

    def normalize_bbox(self, inputs):
        inputs["bbox"] = [round(value * 1000 / 640) for value in inputs["bbox"]]


def normalised(template):
    inputs = {"bbox": [64, 64, 320, 640]}
    template.normalize_bbox(inputs)
    return inputs["bbox"]


SCALED, KEPT = [100, 100, 500, 1000], [64, 64, 320, 640]


@pytest.mark.parametrize("enabled", [True, False])
@pytest.mark.parametrize("skip_bbox_norm", [True, False])
def test_only_both_switches_together_keep_boxes(enabled, skip_bbox_norm):
    template = Template()
    apply_coord_template_adapter(template, enabled=enabled, skip_bbox_norm=skip_bbox_norm)
    assert normalised(template) == (KEPT if enabled and skip_bbox_norm else SCALED)
    if not (enabled and skip_bbox_norm):
        assert vars(template) == {}


def test_twice_is_once_and_off_restores():
    template = Template()
    apply_coord_template_adapter(template, enabled=True, skip_bbox_norm=True)
    apply_coord_template_adapter(template, enabled=True, skip_bbox_norm=True)
    assert normalised(template) == KEPT
    apply_coord_template_adapter(template, enabled=False, skip_bbox_norm=True)
    assert normalised(template) == SCALED
    assert vars(template) == {}


def test_a_method_set_on_the_instance_comes_back():
    template = Template()
    own = template.normalize_bbox = lambda inputs: inputs.update(bbox="own")
    apply_coord_template_adapter(template, enabled=True, skip_bbox_norm=True)
    assert normalised(template) == KEPT
    apply_coord_template_adapter(template, enabled=True, skip_bbox_norm=False)
    assert template.normalize_bbox is own
