"""Detection as an untouched Qwen3-VL does it: the vendor's prompt, and the JSON that answers it.

The answer is a list, mostly in a fence of three backticks, with coordinates in thousandths of the image's sides:
``[{"bbox_2d": [x1, y1, x2, y2], "label": "person"}, ...]``. Qwen2.5-VL writes pixels of the resized image instead.
Nothing here raises on an answer: a piece that is no such object is counted by kind, and makes no box.
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
``cut_off``: the answer ends before its JSON does. ``malformed_json``: an object whose syntax is broken, or that has two
boxes. ``malformed_box``: there is no ``bbox_2d``, or it is not four whole numbers; decimal fractions belong to another
scale. ``coord_out_of_range``: a number below 0 or beyond the border, such as pixels. ``missing_label``: there is no
``label``, or it is blank or no text."""

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
# NaN is no JSON. int() refuses very many digits, and the first nine are out of range already.
_DECODER = json.JSONDecoder(parse_int=lambda digits: int(digits[:_MOST_DIGITS]), parse_constant=lambda name: None)


def detection_prompt(categories: Iterable[str], *, template: str = PROMPT) -> str:
    """Return the instruction to find objects: the template with {categories} replaced by the names."""
    return template.replace(CATEGORIES, ", ".join(categories))


def parse_json_answer(
    text: str, *, thinks: bool = False, borders: tuple[int, int] = _THOUSANDTHS
) -> tuple[list[WrittenObject], list[JsonFailureKind]]:
    """Find the objects of an answer.

    It goes from one opening brace to the next, and looks at the gap before each. So a list, commas and a wrapper such
    as {"objects": [...]} around objects may be there or not.

    Args:
        text: what was generated. A reasoning model's thoughts, up to ``</think>``, are not its answer.
        thinks: whether the prompt has opened the model's reasoning already.
        borders: the coordinates of the image's right and lower border, in the unit of the answer.

    Returns:
        The objects, whose slices are characters of the text; and the kind of each piece that is no object.
    """
    thought_end = text.rfind(_THOUGHT)
    if thought_end < 0 and (thinks or text.lstrip().startswith(_THINKING)):
        return [], ["cut_off"]
    if '"' not in text:
        text = text.replace("'", '"')  # a list as Python prints it
    position = 0 if thought_end < 0 else thought_end + len(_THOUGHT)
    objects: list[WrittenObject] = []
    failures: list[JsonFailureKind] = []
    depth = 0  # of open lists
    has_json = False  # whether a bracket was seen
    while True:
        start = text.find("{", position)
        gap = text[position:] if start < 0 else text[position:start]
        depth = max(0, depth + gap.count("[") - gap.count("]"))
        has_json |= start >= 0 or "[" in gap or "]" in gap
        if _AROUND.sub("", gap):
            failures.append("stray_text" if has_json else "no_json")
        if start < 0:
            break

        value, end = _decoded(text, start)
        inner = text.find("{", start + 1, end)
        is_wrapper = isinstance(value, dict) and "bbox_2d" not in value and inner >= 0
        if is_wrapper:
            position = inner
            continue
        position = end
        piece = _to_object(value, text, slice(start, end), borders) if isinstance(value, dict) else value
        if isinstance(piece, WrittenObject):
            objects.append(piece)
        else:
            failures.append(piece)
    if not has_json and not failures:
        failures.append("no_json")
    if depth > 0 and failures[-1:] != ["cut_off"]:
        failures.append("cut_off")
    return objects, failures


def _decoded(text: str, start: int) -> tuple[dict[str, object] | JsonFailureKind, int]:
    """Return the object at ``start``, or what is wrong with it, and the position after it."""
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
    """Return the object that a decoded value makes, or what is wrong with it.

    Args:
        value: the decoded JSON object.
        text: the answer.
        within: the characters of the JSON object.
        borders: see :func:`parse_json_answer`.
    """
    numbers = value.get("bbox_2d")
    label = value.get("label")
    if not isinstance(numbers, list) or len(numbers) != 4 or any(type(number) is not int for number in numbers):
        return "malformed_box"
    if any(not 0 <= number <= border for number, border in zip(numbers, borders * 2, strict=True)):
        return "coord_out_of_range"
    if not isinstance(label, str) or not label.strip():
        return "missing_label"
    box_match = _BOX.search(text, within.start, within.stop)
    label_match = _LABEL.search(text, within.start, within.stop)
    # The text has no such box if a key is written with escapes, and another one if a key is written twice.
    if box_match is None or label_match is None or [int(digits) for digits in box_match.groups()] != numbers:
        return "malformed_json"
    thousandths = [round(1000 * number / border) for number, border in zip(numbers, borders * 2, strict=True)]
    return WrittenObject(
        desc=_LONE_SURROGATE.sub("\ufffd", label),
        bins=thousandths,
        words=slice(*label_match.span(1)),
        numbers=[slice(*box_match.span(group)) for group in (1, 2, 3, 4)],
    )


_BYTE_OF = {symbol: byte for byte, symbol in bytes_to_unicode().items()}


@dataclass(frozen=True)
class WrittenText:
    """The text that tokens write, and which characters each token writes.

    Attributes:
        text: as the tokenizer decodes it; bytes that are no UTF-8 become U+FFFD.
        starts: the first character of each token. A token that only continues a character has the start of the token
            before it.
        stops: the position behind the last character of each token.
    """

    text: str
    starts: Sequence[int]
    stops: Sequence[int]

    def tokens(self, chars: slice) -> slice:
        """Return the tokens that write any of these characters: at least one, and all that overlap them."""
        return slice(bisect_right(self.stops, chars.start), bisect_left(self.starts, chars.stop))


class JsonFormat:
    """The form of an untouched Qwen3-VL's answers.

    It has the attributes and methods of :class:`~coordexp.evaluate.generate.formats.SequenceFormat`.
    """

    open_id = None  # a brace opens other things than objects too
    number_ids = range(0)  # digits belong to other things than coordinates too

    def __init__(
        self, tokenizer: PreTrainedTokenizerBase, *, thinks: bool = False, pixels_of: ImageSpec | None = None
    ) -> None:
        """Prepare for many answers.

        Args:
            tokenizer: a byte-level tokenizer, as Qwen's is.
            thinks: whether the prompt has opened the model's reasoning already.
            pixels_of: how images were resized, if coordinates are pixels of the resized image; None for thousandths.
        """
        self._thinks = thinks
        self._pixels_of = pixels_of
        self._symbols = {token: symbols for symbols, token in tokenizer.get_vocab().items()}
        self.end_id = end_id(tokenizer)

    def grammar(self, vocab_size: int) -> None:
        """Return None: such an answer has no grammar."""

    def read(self, ids: Sequence[int], size_px: tuple[int, int]) -> tuple[list[WrittenObject], Sequence[str]]:
        """Return the objects of an answer as written, and the kind of each malformed piece; never an error.

        ``size_px`` is the original size of the image, from which the size of the resized image follows.
        """
        written = self.written(ids)
        borders = _THOUSANDTHS if self._pixels_of is None else self._pixels_of.fed_size(*size_px)
        objects_in_text, failures = parse_json_answer(written.text, thinks=self._thinks, borders=borders)
        objects: list[WrittenObject] = []
        for item in objects_in_text:
            words = written.tokens(item.words)
            numbers = [written.tokens(number) for number in item.numbers]
            objects.append(WrittenObject(item.desc, item.bins, words, numbers))
        return objects, failures

    def written(self, ids: Sequence[int]) -> WrittenText:
        """Return the text of tokens, and the characters of each, in linear time."""
        decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        pieces: list[str] = []
        starts: list[int] = []
        stops: list[int] = []
        length = 0
        for token in ids:
            starts.append(length)
            pieces.append(decoder.decode(self._bytes_of(token)))
            length += len(pieces[-1])
            begun_bytes, _ = decoder.getstate()
            # The bytes of a character that a later token completes count as one more character of this token.
            stops.append(length + 1 if begun_bytes else length)
        pieces.append(decoder.decode(b"", final=True))
        return WrittenText("".join(pieces), starts, stops)

    def _bytes_of(self, token: int) -> bytes:
        symbols = self._symbols.get(token, "")  # a model can have more logits than its tokenizer has entries
        try:
            return bytes(_BYTE_OF[symbol] for symbol in symbols)
        except KeyError:
            return symbols.encode()
