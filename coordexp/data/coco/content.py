"""Arrays of a split -> the sections of COCO's format: what AP is measured on if the annotation file cannot serve."""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from coordexp.data.sample import fold
from coordexp.data.sets.split_arrays import CROWD, IGNORED, NO_EXTENT, TARGET, SplitArrays

_FLAGS = {TARGET: {"iscrowd": 0}, CROWD: {"iscrowd": 1}, IGNORED: {"iscrowd": 0, "ignore": 1}}


def coco_content(
    arrays: SplitArrays, categories: Mapping[int, str], fields: Mapping[int, Mapping[str, str]]
) -> dict[str, list[dict[str, object]]]:
    """Return a split as the sections of COCO's format; ids of annotations count from 1.

    Args:
        arrays: the split.
        categories: name of each category id.
        fields: further fields of categories, such as LVIS's ``frequency``, by category id.
    """
    images: list[dict[str, object]] = []
    annotations: list[dict[str, object]] = []
    # As lists: the loop below reads every number, and a number of an array is slow to read.
    boxes = arrays.boxes_px_xywh.tolist()
    areas = arrays.areas_px2.tolist()
    category_ids = arrays.category_ids.tolist()
    kinds = arrays.kinds.tolist()
    for image, image_id in enumerate(arrays.image_ids.tolist()):
        width, height = arrays.sizes_px[image].tolist()
        lists_of_image = {name: lists[image] for name, lists in arrays.lists.items()}
        images.append(
            {"id": image_id, "file_name": arrays.names[image], "width": width, "height": height, **lists_of_image}
        )
        for row in range(int(arrays.first[image]), int(arrays.first[image + 1])):
            annotations.append(
                {
                    "id": len(annotations) + 1,
                    "image_id": image_id,
                    "category_id": category_ids[row],
                    "bbox": boxes[row],
                    "area": areas[row],
                    **_FLAGS[kinds[row] & ~NO_EXTENT],
                }
            )
    entries: list[dict[str, object]] = [
        {"id": category_id, "name": name, **fields.get(category_id, {})} for category_id, name in categories.items()
    ]
    return {"images": images, "annotations": annotations, "categories": entries}


def with_description_categories(arrays: SplitArrays) -> tuple[SplitArrays, dict[int, str]]:
    """Return a split whose categories are its descriptions, and the name of each category id.

    Ids count from 1, in the order of the folded descriptions. Descriptions are folded as
    :class:`coordexp.detection.names.categories.CategoryIndex` does; the first spelling of each is its name.
    """
    name_of_folded: dict[str, str] = {}
    for text in arrays.text_index.tolist():
        name_of_folded.setdefault(fold(arrays.texts[text]), arrays.texts[text])
    id_of_folded = {folded: category_id for category_id, folded in enumerate(sorted(name_of_folded), start=1)}
    # A text that no object has gets 0; nothing points to it.
    ids_of_texts = np.array([id_of_folded.get(fold(text), 0) for text in arrays.texts], np.int64)
    categories = {category_id: name_of_folded[folded] for folded, category_id in id_of_folded.items()}
    return replace(arrays, category_ids=ids_of_texts[arrays.text_index]), categories
