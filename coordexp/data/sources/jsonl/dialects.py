"""Records of other trainers -> JSONL's: ms-swift's grounding, and answers in JSON of LLaMA-Factory's and Qwen's.

- ms-swift: ``"objects": {"ref": [...], "bbox": [[...]], "bbox_type": "real"}``, in pixels if it does not say;
- chats: ``messages`` or ``conversations``, whose answer is JSON: ``[{"bbox_2d": [...], "label": "cat"}]``;
- one object on a line: ``{"image": "a.jpg", "bbox": [...], "label": "cat"}``.
"""

import json
import re
from collections.abc import Iterator, Mapping

from coordexp.data.coco.ids import id_of
from coordexp.errors import DataError, kind_of, show

_DESC_KEYS = ("desc", "label", "name", "category", "class", "ref", "text")
_BBOX_FORMATS = {"real": "pixels", "norm1": "normalised", "norm1000": "norm1000"}
"""ms-swift's ``bbox_type`` -> our ``bbox_format``."""
_JSON = re.compile(r"\[\s*\{.*\}\s*\]|\{.*\}|\[\s*\]", re.DOTALL)
_ANSWERING_ROLES = ("assistant", "gpt", "model")


def as_record(written: Mapping[str, object]) -> dict[str, object]:
    """Return a record with ``image`` and a list ``objects`` of ``desc`` and box, in any dialect that is read.

    Raises:
        DataError: if it names several pictures, or it does not say what its boxes are of.
    """
    record = {**written, "image": _image(written)}
    objects = record.get("objects")
    if isinstance(objects, dict):
        record |= _from_swift(objects, [text for _, text in _turns(record)])
    elif objects is None and ("messages" in record or "conversations" in record):
        record["objects"] = _from_answer(record)
    elif objects is None and ("bbox" in record or "bbox_2d" in record):
        record["objects"] = [{name: record[name] for name in (*_DESC_KEYS, "bbox", "bbox_2d") if name in record}]
    items = record.get("objects")
    if items is None:
        keys = ", ".join(str(key) for key in written) or "nothing"
        raise DataError(f"objects is missing, expected a list; the record has {keys}. Without objects: an empty list")
    if isinstance(items, list):
        record["objects"] = [_with_desc(item) for item in items]
    for name in ("width", "height"):
        if not isinstance(record.get(name), int) and record.get(name) is not None:
            record[name] = id_of(record[name])  # 640.0 or "640"
    return record


def _image(record: Mapping[str, object]) -> object:
    """Return the name of a record's picture: under ``image``, ``file_name``, or in a list of one under ``images``."""
    if "images" in record and "image" in record:
        raise DataError("the record has both image and images, expected one of them")
    name = record.get("images", record.get("image", record.get("file_name")))
    if "images" in record or isinstance(name, list):
        if not isinstance(name, list) or len(name) != 1:
            raise DataError(f"images is {kind_of(name)}, expected a list of one image")
        name = name[0]
    return name.get("path") if isinstance(name, dict) else name  # {"path": ..., "bytes": null}


def _with_desc(item: object) -> object:
    """Return an object whose description stands under ``desc``."""
    if not isinstance(item, dict) or "desc" in item:
        return item
    desc_key = "desc"
    for key in _DESC_KEYS:
        if key in item:
            desc_key = key
            break
    other_fields = {key: value for key, value in item.items() if key != desc_key}
    return {"desc": item.get(desc_key), **other_fields}


def _from_swift(objects: Mapping[str, object], texts: list[str]) -> dict[str, object]:
    """Return ``objects`` and ``bbox_format`` of a record of ms-swift.

    Args:
        objects: its lists of names and boxes.
        texts: of the chat, whose marks say which name a box has if there are fewer names than boxes.
    """
    refs = objects.get("ref")
    boxes = objects.get("bbox")
    bbox_type = objects.get("bbox_type")
    if not isinstance(refs, list) or not isinstance(boxes, list):
        keys = ", ".join(map(str, objects)) or "nothing"
        raise DataError(
            f"objects holds {keys}; expected lists under ref and bbox, as ms-swift writes them, or a list of objects"
        )
    if bbox_type is not None and (not isinstance(bbox_type, str) or bbox_type not in _BBOX_FORMATS):
        raise DataError(f"objects.bbox_type is {show(bbox_type)}, expected real, norm1 or norm1000")
    if len(refs) == 1:
        refs = refs * len(boxes)
    elif len(refs) != len(boxes):
        refs = _refs_of_boxes(refs, texts)
    if len(refs) != len(boxes):
        raise DataError(f"objects has {len(refs)} names for {len(boxes)} boxes, expected one for each")
    box_key = "bbox_2d" if bbox_type == "norm1000" else "bbox"
    entries = [{"desc": ref, box_key: box} for ref, box in zip(refs, boxes, strict=True)]
    return {"objects": entries, "bbox_format": _BBOX_FORMATS[bbox_type or "real"]}


def _refs_of_boxes(refs: list[object], texts: list[str]) -> list[object]:
    """Return the name of each ``<bbox>`` of a chat: the name of the ``<ref-object>`` before it."""
    refs_of_boxes: list[object] = []
    ref_number = -1
    for mark in re.findall(r"<ref-object>|<bbox>", "\n".join(texts)):
        if mark == "<ref-object>":
            ref_number += 1
        elif 0 <= ref_number < len(refs):
            refs_of_boxes.append(refs[ref_number])
    return refs_of_boxes


def _turns(record: Mapping[str, object]) -> Iterator[tuple[str, str]]:
    """Yield role and text of each turn of a record's chat."""
    chat = record.get("messages", record.get("conversations"))
    for turn in chat if isinstance(chat, list) else []:
        if not isinstance(turn, dict):
            continue
        content = turn.get("content", turn.get("value"))
        if isinstance(content, list):
            content = "".join(str(item.get("text", "")) for item in content if isinstance(item, dict))
        yield str(turn.get("role", turn.get("from"))), str(content)


def _from_answer(record: Mapping[str, object]) -> list[object]:
    """Return the objects in the answers of a chat; a DataError says why there are none."""
    answers = [text for role, text in _turns(record) if role in _ANSWERING_ROLES]
    if not answers:
        raise DataError("the chat has no answer, expected a turn of assistant or gpt")
    objects: list[object] = []
    for answer in answers:
        match = _JSON.search(answer)
        try:
            value = json.loads(match[0]) if match else None
        except (ValueError, RecursionError) as error:
            raise DataError(f"the answer is not valid JSON ({error}): {show(answer)}") from None
        if value is None:
            raise DataError(f"the answer holds no boxes in JSON, expected bbox_2d and label: {show(answer)}")
        objects += value if isinstance(value, list) else [value]
    return objects
