"""Qwen3-VL's own words for detection: the vendor's prompt, and the JSON that answers it.

The answer is a list, mostly in a fence of three backticks, with coordinates in thousandths of the image's sides:
``[{"bbox_2d": [x1, y1, x2, y2], "label": "person"}, ...]``; Qwen2.5-VL counts pixels of the resized image instead.
Nothing here raises on an answer: what is no such object is counted by kind, and is no box.
"""

import codecs
import json
import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from transformers import PreTrainedTokenizerBase
from transformers.convert_slow_tokenizer import bytes_to_unicode

from coordexp.coord_tokens.vocab import end_id
from coordexp.data.images.patches import ImageSpec
from coordexp.evaluate.generate.formats import WrittenObject

JsonFailureKind = Literal[
    "no_json", "stray_text", "cut_off", "malformed_json", "malformed_box", "coord_out_of_range", "missing_label"
]  # fmt: skip
JSON_FAILURE_KINDS: tuple[JsonFailureKind, ...] = get_args(JsonFailureKind)
"""``no_json``: an answer in prose, or none at all. ``stray_text``: text before, between or behind the objects.
``cut_off``: the answer ends before its JSON does. ``malformed_json``: an object whose syntax is broken, or one of two
boxes. ``malformed_box``: no ``bbox_2d``, or none of four whole numbers; decimal fractions belong to another scale.
``coord_out_of_range``: a number below 0 or beyond the border, such as pixels. ``missing_label``: no ``label``, a blank
one, or one that is no text."""

_MOST_DIGITS = 9  # of a coordinate
_THOUSANDTHS = (1000, 1000)  # where the image's right and lower border are
CATEGORIES = "{categories}"
PROMPT = f'Locate every instance that belongs to the following categories: "{CATEGORIES}". ' + (
    "Report bbox coordinates in JSON format."
)
"""The prompt of the vendor's cookbook for 2D grounding with Qwen3-VL."""

_THINKING, _THOUGHT = "<think>", "</think>"
_AROUND = re.compile(r"```\w*|[\[\]},\s]++")  # a fence with its language, lists, commas, the end of a wrapper
_BRACE = re.compile(r"[{}]")
_BOX = re.compile(r'"bbox_2d"\s*:\s*\[\s*(\d+)\s*,\s*(\d+)\s*,\s*(\d+)\s*,\s*(\d+)\s*\]')
_LABEL = re.compile(r'"label"\s*:\s*"((?:[^"\\]|\\.)*+)"')
_LONE_SURROGATE = re.compile("[\ud800-\udfff]")
# NaN is no JSON, and int() refuses very many digits.
_DECODER = json.JSONDecoder(parse_int=lambda digits: int(digits[:_MOST_DIGITS]), parse_constant=lambda name: None)


def detection_prompt(categories: Iterable[str], *, template: str = PROMPT) -> str:
    """Return the instruction to find objects of these categories, which stand where ``template`` says {categories}."""
    return template.replace(CATEGORIES, ", ".join(categories))


def parse_json_answer(
    text: str, *, thinks: bool = False, borders: tuple[int, int] = _THOUSANDTHS
) -> tuple[list[WrittenObject], list[JsonFailureKind]]:
    """Find the objects of an answer and their characters, and what is wrong with each other piece of it.

    A list, commas and a wrapper such as {"objects": [...]} around objects may be there or not.

    Args:
        text: what was generated; what a reasoning model thinks, up to ``</think>``, is not its answer.
        thinks: the prompt has opened the model's reasoning already.
        borders: the coordinates of the image's right and lower border, in the unit of the answer.
    """
    thought = text.rfind(_THOUGHT)
    if thought < 0 and (thinks or text.lstrip().startswith(_THINKING)):
        return [], ["cut_off"]
    if '"' not in text:
        text = text.replace("'", '"')  # a list as Python prints it
    at = 0 if thought < 0 else thought + len(_THOUGHT)
    objects: list[WrittenObject] = []
    failures: list[JsonFailureKind] = []
    depth, has_marks = 0, False
    while True:
        start = text.find("{", at)
        gap = text[at : None if start < 0 else start]
        depth = max(0, depth + gap.count("[") - gap.count("]"))
        has_marks |= start >= 0 or "[" in gap or "]" in gap
        if _AROUND.sub("", gap):
            failures.append("stray_text" if has_marks else "no_json")
        if start < 0:
            break
        value, end = _decoded(text, start)
        if isinstance(value, dict) and "bbox_2d" not in value and (inner := text.find("{", start + 1, end)) >= 0:
            at = inner
            continue
        found, at = _to_object(value, text, slice(start, end), borders) if isinstance(value, dict) else value, end
        if isinstance(found, WrittenObject):
            objects.append(found)
        else:
            failures.append(found)
    if not has_marks and not failures:
        failures.append("no_json")
    if depth > 0 and failures[-1:] != ["cut_off"]:
        failures.append("cut_off")
    return objects, failures


def _decoded(text: str, start: int) -> tuple[dict[str, object] | JsonFailureKind, int]:
    """Return the object at ``start``, or what is wrong with it, and where to continue."""
    try:
        return _DECODER.raw_decode(text, start)
    except (json.JSONDecodeError, RecursionError) as error:
        brace = _BRACE.search(text, getattr(error, "pos", len(text)))
        if brace is None:
            return "cut_off", len(text)
        return "malformed_json", brace.start() if brace[0] == "{" else brace.end()


def _to_object(
    value: dict[str, object], text: str, within: slice, borders: tuple[int, int]
) -> WrittenObject | JsonFailureKind:
    """Return the object that a decoded value makes, or what is wrong with it."""
    numbers, label = value.get("bbox_2d"), value.get("label")
    if not isinstance(numbers, list) or len(numbers) != 4 or any(type(number) is not int for number in numbers):
        return "malformed_box"
    if any(not 0 <= number <= border for number, border in zip(numbers, borders * 2, strict=True)):
        return "coord_out_of_range"
    if not isinstance(label, str) or not label.strip():
        return "missing_label"
    box_at, label_at = (pattern.search(text, within.start, within.stop) for pattern in (_BOX, _LABEL))
    # Written with escapes, or twice.
    if box_at is None or label_at is None or [int(digits) for digits in box_at.groups()] != numbers:
        return "malformed_json"
    places = [slice(*box_at.span(number)) for number in (1, 2, 3, 4)]
    thousandths = [round(1000 * number / border) for number, border in zip(numbers, borders * 2, strict=True)]
    return WrittenObject(_LONE_SURROGATE.sub("\ufffd", label), thousandths, slice(*label_at.span(1)), places)


_BYTE_OF = {symbol: byte for byte, symbol in bytes_to_unicode().items()}


@dataclass(frozen=True)
class WrittenText:
    """The text that tokens write, and which characters each of them writes.

    Attributes:
        text: as the tokenizer decodes it; bytes that are no UTF-8 become U+FFFD.
        starts: the first character of each token. One that only goes on with a character has the same as its neighbour.
        stops: behind its last character.
    """

    text: str
    starts: Sequence[int]
    stops: Sequence[int]

    def tokens(self, chars: slice) -> slice:
        """Return the tokens that write some of these characters, at least one, also those that write more."""
        return slice(bisect_right(self.stops, chars.start), bisect_left(self.starts, chars.stop))


class JsonFormat:
    """The answers of an untouched Qwen3-VL; as :class:`~coordexp.evaluate.generate.formats.SequenceFormat`."""

    open_id = None  # braces open more than objects
    number_ids = range(0)  # JSON has digits elsewhere, too

    def __init__(
        self, tokenizer: PreTrainedTokenizerBase, *, thinks: bool = False, pixels_of: ImageSpec | None = None
    ) -> None:
        """Prepare for many answers of a byte-level tokenizer, as Qwen's is.

        ``thinks``: as in :func:`parse_json_answer`; ``pixels_of``: coordinates are pixels of images that were resized
        like this, None for thousandths.
        """
        self._thinks, self._pixels_of = thinks, pixels_of
        self._symbols = {token: symbols for symbols, token in tokenizer.get_vocab().items()}
        self.end_id = end_id(tokenizer)

    def grammar(self, vocab_size: int) -> None:
        """There is none for such an answer."""

    def read(self, ids: Sequence[int], size_px: tuple[int, int]) -> tuple[list[WrittenObject], Sequence[str]]:
        """Return the objects of an answer as written, and the kind of each malformed piece; never an error."""
        written, borders = self.written(ids), _THOUSANDTHS
        if self._pixels_of is not None:
            borders = self._pixels_of.fed_size(*size_px)
        objects, failures = parse_json_answer(written.text, thinks=self._thinks, borders=borders)
        return [
            item._replace(words=written.tokens(item.words), numbers=[written.tokens(at) for at in item.numbers])
            for item in objects
        ], failures

    def written(self, ids: Sequence[int]) -> WrittenText:
        """Return the text of ids, and where in it each of them stands; in linear time."""
        decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        pieces: list[str] = []
        starts: list[int] = []
        stops: list[int] = []
        length = 0
        for token in ids:
            starts.append(length)
            pieces.append(decoder.decode(self._bytes_of(token)))
            length += len(pieces[-1])
            begun, _ = decoder.getstate()
            stops.append(length + bool(begun))
        pieces.append(decoder.decode(b"", final=True))
        return WrittenText("".join(pieces), starts, stops)

    def _bytes_of(self, token: int) -> bytes:
        symbols = self._symbols.get(token, "")  # a model can have more logits than its tokenizer has entries
        try:
            return bytes(_BYTE_OF[symbol] for symbol in symbols)
        except KeyError:
            return symbols.encode()
