"""Arrays of a split -> the sections of COCO's format: what AP is measured on where no annotation file can be."""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from coordexp.data.sample import fold
from coordexp.data.sets.split_arrays import CROWD, IGNORED, NO_EXTENT, TARGET, SplitArrays

_FLAGS = {TARGET: {"iscrowd": 0}, CROWD: {"iscrowd": 1}, IGNORED: {"iscrowd": 0, "ignore": 1}}


def coco_content(
    arrays: SplitArrays, categories: Mapping[int, str], fields: Mapping[int, Mapping[str, str]]
) -> dict[str, list[dict[str, object]]]:
    """Return a split as the sections of COCO's format, ids of annotations from 1.

    Args:
        arrays: of the split.
        categories: name of each category id.
        fields: further fields of categories, such as LVIS's ``frequency``.
    """
    images: list[dict[str, object]] = []
    annotations: list[dict[str, object]] = []
    boxes, areas = arrays.boxes_px_xywh.tolist(), arrays.areas_px2.tolist()
    category_ids, kinds = arrays.category_ids.tolist(), arrays.kinds.tolist()
    for image, image_id in enumerate(arrays.image_ids.tolist()):
        width, height = arrays.sizes_px[image].tolist()
        lists = {name: lists[image] for name, lists in arrays.lists.items()}
        images.append({"id": image_id, "file_name": arrays.names[image], "width": width, "height": height, **lists})
        for row in range(int(arrays.first[image]), int(arrays.first[image + 1])):
            entry: dict[str, object] = {"id": len(annotations) + 1, "image_id": image_id}
            entry |= {"category_id": category_ids[row], "bbox": boxes[row], "area": areas[row]}
            annotations.append(entry | _FLAGS[kinds[row] & ~NO_EXTENT])
    entries: list[dict[str, object]] = [
        {"id": key, "name": name, **fields.get(key, {})} for key, name in categories.items()
    ]
    return {"images": images, "annotations": annotations, "categories": entries}


def with_description_categories(arrays: SplitArrays) -> tuple[SplitArrays, dict[int, str]]:
    """Return a split whose categories are its descriptions: from 1, in the order of their folded forms.

    Equal ones are folded as :class:`coordexp.detection.names.categories.CategoryIndex` does; the first spelling counts.
    """
    names: dict[str, str] = {}
    for at in arrays.text_index.tolist():
        names.setdefault(fold(arrays.texts[at]), arrays.texts[at])
    ids = {folded: key for key, folded in enumerate(sorted(names), start=1)}
    ids_of_texts = np.array([ids.get(fold(text), 0) for text in arrays.texts], np.int64)
    categories = {key: names[folded] for folded, key in ids.items()}
    return replace(arrays, category_ids=ids_of_texts[arrays.text_index]), categories
