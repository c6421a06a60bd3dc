"""Records of other trainers -> JSONL's: ms-swift's grounding, and answers in JSON of LLaMA-Factory's and Qwen's.

- ms-swift: ``"objects": {"ref": [...], "bbox": [[...]], "bbox_type": "real"}``, in pixels where it does not say;
- chats: ``messages`` or ``conversations``, whose answer is JSON: ``[{"bbox_2d": [...], "label": "cat"}]``.
"""

import json
import re
from collections.abc import Iterator, Mapping

from coordexp.data.coco.ids import id_of
from coordexp.errors import DataError, kind_of, show

_DESCS = ("desc", "label", "name", "category", "class", "ref", "text")
_BBOX_TYPES = {"real": "pixels", "norm1": "normalised", "norm1000": "norm1000"}
_JSON = re.compile(r"\[\s*\{.*\}\s*\]|\{.*\}|\[\s*\]", re.DOTALL)


def as_record(found: Mapping[str, object]) -> dict[str, object]:
    """Return a record with ``image`` and a list ``objects`` of ``desc`` and box, in any dialect that is read.

    Raises:
        DataError: if it names several pictures, or it does not say what its boxes are of.
    """
    record = {**found, "image": _image(found)}
    objects = record.get("objects")
    if isinstance(objects, dict):
        record |= _from_swift(objects, [text for _, text in _turns(record)])
    elif objects is None and ("messages" in record or "conversations" in record):
        record["objects"] = _from_answer(record)
    elif objects is None and ("bbox" in record or "bbox_2d" in record):  # one line an object
        record["objects"] = [{name: record[name] for name in (*_DESCS, "bbox", "bbox_2d") if name in record}]
    items = record.get("objects")
    if items is None:
        keys = ", ".join(str(key) for key in found) or "nothing"
        raise DataError(f"objects is missing, expected a list; the record has {keys}. Without objects: an empty list")
    if isinstance(items, list):
        record["objects"] = [_named(item) for item in items]
    for name in ("width", "height"):
        if not isinstance(record.get(name), int) and record.get(name) is not None:
            record[name] = id_of(record[name])
    return record


def _image(record: Mapping[str, object]) -> object:
    if "images" in record and "image" in record:
        raise DataError("the record has both image and images, expected one of them")
    names = record.get("images", record.get("image", record.get("file_name")))
    if "images" in record or isinstance(names, list):
        if not isinstance(names, list) or len(names) != 1:
            raise DataError(f"images is {kind_of(names)}, expected a list of one image")
        names = names[0]
    return names.get("path") if isinstance(names, dict) else names  # {"path": ..., "bytes": null}


def _named(item: object) -> object:
    """Return an object whose description stands under ``desc``."""
    if not isinstance(item, dict) or "desc" in item:
        return item
    name = next((name for name in _DESCS if name in item), "desc")
    return {"desc": item.get(name), **{key: value for key, value in item.items() if key != name}}


def _from_swift(objects: Mapping[str, object], texts: list[str]) -> dict[str, object]:
    refs, boxes, kind = objects.get("ref"), objects.get("bbox"), objects.get("bbox_type")
    if not isinstance(refs, list) or not isinstance(boxes, list):
        there = ", ".join(map(str, objects)) or "nothing"
        raise DataError(
            f"objects holds {there}; expected lists under ref and bbox, as ms-swift writes them, or a list of objects"
        )
    if kind is not None and (not isinstance(kind, str) or kind not in _BBOX_TYPES):
        raise DataError(f"objects.bbox_type is {show(kind)}, expected real, norm1 or norm1000")
    if len(refs) != len(boxes):
        refs = refs * len(boxes) if len(refs) == 1 else _refs_of_boxes(refs, texts)
    if len(refs) != len(boxes):
        raise DataError(f"objects has {len(refs)} names for {len(boxes)} boxes, expected one for each")
    name = "bbox_2d" if kind == "norm1000" else "bbox"
    found = [{"desc": ref, name: box} for ref, box in zip(refs, boxes, strict=True)]
    return {"objects": found, "bbox_format": _BBOX_TYPES[kind or "real"]}


def _refs_of_boxes(refs: list[object], texts: list[str]) -> list[object]:
    """Return the name of each ``<bbox>``: that of the ``<ref-object>`` before it."""
    found: list[object] = []
    place = -1
    for mark in re.findall(r"<ref-object>|<bbox>", "\n".join(texts)):
        place += mark == "<ref-object>"
        if mark == "<bbox>" and 0 <= place < len(refs):
            found.append(refs[place])
    return found


def _turns(record: Mapping[str, object]) -> Iterator[tuple[str, str]]:
    chat = record.get("messages", record.get("conversations"))
    for turn in chat if isinstance(chat, list) else []:
        if isinstance(turn, dict):
            content = turn.get("content", turn.get("value"))
            if isinstance(content, list):
                content = "".join(str(part.get("text", "")) for part in content if isinstance(part, dict))
            yield str(turn.get("role", turn.get("from"))), str(content)


def _from_answer(record: Mapping[str, object]) -> list[object]:
    answers = [text for role, text in _turns(record) if role in ("assistant", "gpt", "model")]
    if not answers:
        raise DataError("the chat has no answer, expected a turn of assistant or gpt")
    found: list[object] = []
    for answer in answers:
        match = _JSON.search(answer)
        try:
            value = json.loads(match[0]) if match else None
        except (ValueError, RecursionError) as error:
            raise DataError(f"the answer is not valid JSON ({error}): {show(answer)}") from None
        if value is None:
            raise DataError(f"the answer holds no boxes in JSON, expected bbox_2d and label: {show(answer)}")
        found += value if isinstance(value, list) else [value]
    return found
