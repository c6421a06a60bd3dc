"""Qwen3-VL's own words for detection: the vendor's prompt, and the JSON that answers it -> objects and failures.

The answer is a list, mostly in a fence of three backticks, with coordinates in thousandths of the image's sides:
``[{"bbox_2d": [x1, y1, x2, y2], "label": "person"}, ...]``. Nothing here raises on an answer: what is no such object is
counted by kind, and is no box. Time is linear in the length of an answer, and its nesting may be of any depth.
"""

import itertools
import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, NamedTuple, get_args

JsonFailureKind = Literal[
    "no_json",
    "stray_text",
    "cut_off",
    "malformed_json",
    "nested",
    "repeated_key",
    "missing_box",
    "too_few_coords",
    "too_many_coords",
    "coord_not_a_number",
    "coord_not_an_integer",
    "coord_out_of_range",
    "missing_label",
]
JSON_FAILURE_KINDS: tuple[JsonFailureKind, ...] = get_args(JsonFailureKind)
"""``no_json``: an answer in prose, or none at all. ``stray_text``: text before, between or behind the objects.
``cut_off``: the answer ends before its JSON does. ``malformed_json``: an object whose syntax is broken. ``nested``: an
object within another object, or in a list within a list. ``repeated_key``: two boxes or two labels in one object.
``missing_box``: no ``bbox_2d``, or one that is no list. ``too_few_coords``, ``too_many_coords``: not four.
``coord_not_a_number``: text, null or a list for a coordinate. ``coord_not_an_integer``: a decimal fraction, which
belongs to another scale. ``coord_out_of_range``: below 0 or above 1000, such as pixels. ``missing_label``: no
``label``, a blank one, or one that is no text."""

LARGEST = 1000  # of a coordinate: the image's right or lower border
CATEGORIES = "{categories}"
PROMPT = f'Locate every instance that belongs to the following categories: "{CATEGORIES}". ' + (
    "Report bbox coordinates in JSON format."
)
"""The prompt of the vendor's cookbook for 2D grounding with Qwen3-VL."""

_BOX, _LABEL = "bbox_2d", "label"
_THINKING, _THOUGHT = "<think>", "</think>"
# Outside of objects: the marks of lists and objects, a fence with its language, and whatever stands between them.
_OUTSIDE = re.compile(r"(?P<mark>[\[\]{])|(?P<fence>```\w*)|(?P<text>(?:[^\[\]{`]|`(?!``))++)")
# Inside of one: a string that is not closed ends with its line. Possessive, so that no text is read twice.
_INSIDE = re.compile(
    r"""(?P<string>"(?:[^"\\\n]|\\[^\n])*+(?P<closed>")?|'(?:[^'\\\n]|\\[^\n])*+(?P<closed_single>')?)"""
    r"""|(?P<mark>[{}\[\]:,])|(?P<scalar>[^\s"'{}\[\]:,]++)"""
)
_SPACE = re.compile(r"\s*+")
_INTEGER = re.compile(r"-?[0-9]+")
_DECIMAL = re.compile(r"-?[0-9]*\.?[0-9]+(?:[eE][+-]?[0-9]+)?")
_LONE_SURROGATE = re.compile("[\ud800-\udfff]")


class JsonObject(NamedTuple):
    """One well-formed object of an answer.

    Attributes:
        label: what it is called, unescaped.
        box: x1, y1, x2, y2 as written, 0 to 1000; corners may be swapped.
        label_chars: where the label stands in the answer, without its quotes.
        box_chars: where each of the four numbers stands.
    """

    label: str
    box: tuple[int, ...]
    label_chars: slice
    box_chars: tuple[slice, ...]


@dataclass(frozen=True)
class JsonAnswer:
    """The objects of one answer in written order, and a failure for each malformed piece."""

    objects: tuple[JsonObject, ...]
    failures: tuple[JsonFailureKind, ...]


def detection_prompt(categories: Iterable[str], *, template: str = PROMPT) -> str:
    """Return the instruction to find objects of these categories, which stand where ``template`` says {categories}."""
    return template.replace(CATEGORIES, ", ".join(categories))


def parse_json_answer(text: str, *, thinks: bool = False) -> JsonAnswer:
    """Find the objects of an answer.

    Accepted beyond strict JSON: one object without a list, objects without commas between them, several lists, a comma
    behind the last item, single quotes, leading zeros, and further keys in an object.

    Args:
        text: what was generated; what a reasoning model thinks, up to ``</think>``, is not its answer.
        thinks: the prompt has opened the model's reasoning already.
    """
    start = text.rfind(_THOUGHT)
    if start < 0 and (thinks or text.lstrip().startswith(_THINKING)):
        return JsonAnswer((), ("cut_off",))
    return _Parser(text, at=0 if start < 0 else start + len(_THOUGHT)).answer()


class _Lexeme(NamedTuple):
    """One word of JSON. ``kind``: a mark itself, ``string``, ``open_string`` (not closed) or ``scalar``."""

    kind: str
    start: int
    stop: int


class _BrokenError(Exception):
    """An object cannot be read to its end."""

    def __init__(self, kind: JsonFailureKind, last: _Lexeme | None) -> None:
        super().__init__(kind)
        self.kind: JsonFailureKind = kind
        self.last = last


@dataclass
class _Value:
    """The value of a key: one lexeme, or the items of a list; None for an item or a value that is itself nested."""

    lexeme: _Lexeme | None = None
    items: list[_Lexeme | None] | None = None


class _Parser:
    """Reads one answer from left to right."""

    def __init__(self, text: str, *, at: int) -> None:
        self._text = text
        self._at = at
        self._num_within = 0  # objects within the one that is read
        self._objects: list[JsonObject] = []
        self._failures: list[JsonFailureKind] = []

    def answer(self) -> JsonAnswer:
        """Read everything."""
        depth = 0
        has_marks = is_stray = False
        while found := _OUTSIDE.match(self._text, self._at):
            self._at = found.end()
            mark = found["mark"]
            has_marks |= mark is not None
            if mark == "{":
                self._fail("stray_text", is_stray)
                is_stray = False
                self._object(is_nested=depth > 1)
            elif mark == "[":
                depth += 1
            elif mark == "]" and depth > 0:
                depth -= 1
            elif found["fence"] is None:
                is_stray |= not found[0].replace(",", " ").isspace()
        self._fail("stray_text" if has_marks else "no_json", is_stray or not has_marks)
        self._fail("cut_off", depth > 0 and self._failures[-1:] != ["cut_off"])
        return JsonAnswer(tuple(self._objects), tuple(self._failures))

    def _object(self, *, is_nested: bool) -> None:
        """Read an object behind its opening brace, or what there is of it."""
        self._num_within = 0
        try:
            members = self._members()
        except _BrokenError as broken:
            self._fail("nested", self._num_within)
            self._fail(broken.kind)
            self._skip_broken(broken.last)
            return
        found = "nested" if is_nested else _to_object(members, self._text)
        if isinstance(found, JsonObject):
            self._objects.append(found)
        elif self._num_within:
            self._fail("nested", self._num_within)  # a wrapper such as {"objects": [...]} counts as what it holds
        else:
            self._fail(found)

    def _fail(self, kind: JsonFailureKind, times: int = 1) -> None:
        self._failures.extend(itertools.repeat(kind, times))

    def _skip_broken(self, last: _Lexeme | None) -> None:
        """Go behind the next closing brace, or to the next opening one, which begins another object."""
        while last is not None and last.kind not in ("{", "}"):
            last = self._lexeme()
        if last is not None and last.kind == "{":
            self._at = last.start

    def _members(self) -> list[tuple[_Lexeme, _Value]]:
        members: list[tuple[_Lexeme, _Value]] = []
        while (key := self._needed("string", "}")).kind == "string":
            self._needed(":")
            members.append((key, self._value()))
            if self._needed(",", "}").kind == "}":
                break
        return members

    def _value(self) -> _Value:
        first = self._needed("string", "scalar", "[", "{")
        if first.kind == "{":
            self._num_within += 1
            self._skip_nested()
            return _Value()
        if first.kind != "[":
            return _Value(first)
        items: list[_Lexeme | None] = []
        while (item := self._needed("string", "scalar", "[", "{", "]")).kind != "]":
            if item.kind in ("[", "{"):
                self._num_within += item.kind == "{"
                self._skip_nested()
                items.append(None)
            else:
                items.append(item)
            if self._needed(",", "]").kind == "]":
                break
        return _Value(items=items)

    def _skip_nested(self) -> None:
        """Go behind the end of what was just opened; brackets and braces close each other."""
        depth = 1
        while depth:
            kind = self._needed("string", "scalar", ":", ",", "[", "{", "]", "}").kind
            self._num_within += kind == "{"
            depth += (kind in ("[", "{")) - (kind in ("]", "}"))

    def _needed(self, *kinds: str) -> _Lexeme:
        """Return the next lexeme, which must be one of these kinds."""
        found = self._lexeme()
        if found is None or (found.kind == "open_string" and "\n" not in self._text[found.stop : found.stop + 2]):
            raise _BrokenError("cut_off", None)
        if found.kind not in kinds:
            raise _BrokenError("malformed_json", found)
        return found

    def _lexeme(self) -> _Lexeme | None:
        space = _SPACE.match(self._text, self._at)
        found = _INSIDE.match(self._text, space.end() if space else self._at)
        if found is None:
            self._at = len(self._text)
            return None
        self._at = found.end()
        kind = found["mark"] or ("scalar" if found["scalar"] else "string")
        if kind == "string" and not (found["closed"] or found["closed_single"]):
            kind = "open_string"
        return _Lexeme(kind, found.start(), found.end())


def _to_object(members: list[tuple[_Lexeme, _Value]], text: str) -> JsonObject | JsonFailureKind:
    """Return the object that the members make, or what is wrong with them."""
    found: dict[str, _Value] = {}
    for key, value in members:
        name = text[key.start + 1 : key.stop - 1]
        if name in found and name in (_BOX, _LABEL):
            return "repeated_key"
        found[name] = value
    items = found.get(_BOX, _Value()).items
    label = found.get(_LABEL, _Value()).lexeme
    if items is None:
        return "missing_box"
    box = _coordinates(items, text)
    if isinstance(box, str):
        return box
    if label is None or label.kind != "string":
        return "missing_label"
    name = _unescaped(text[label.start : label.stop])
    if name is None:
        return "malformed_json"
    if not name.strip():
        return "missing_label"
    places = tuple(slice(item.start, item.stop) for item in items if item is not None)
    return JsonObject(name, box, label_chars=slice(label.start + 1, label.stop - 1), box_chars=places)


def _coordinates(items: list[_Lexeme | None], text: str) -> tuple[int, ...] | JsonFailureKind:
    written = ["" if item is None else text[item.start : item.stop] for item in items]
    if any(not _DECIMAL.fullmatch(number) for number in written):
        return "coord_not_a_number"
    if any(not _INTEGER.fullmatch(number) for number in written):
        return "coord_not_an_integer"
    if len(written) != 4:
        return "too_few_coords" if len(written) < 4 else "too_many_coords"
    # Compared as text first: Python refuses to read a number of very many digits.
    short = [number.lstrip("0") or "0" for number in written]
    if any(number.startswith("-") or len(number) > 4 or int(number) > LARGEST for number in short):
        return "coord_out_of_range"
    return tuple(map(int, short))


def _unescaped(literal: str) -> str | None:
    """Return the text of a string in single or double quotes; None if it has an escape that JSON does not know."""
    if literal[0] == "'":
        literal = '"' + literal[1:-1].replace("\\'", "'").replace('"', '\\"') + '"'
    try:
        found = json.loads(literal, strict=False)
    except ValueError:
        return None
    return _LONE_SURROGATE.sub("\ufffd", str(found))
