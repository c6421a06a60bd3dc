"""A generated answer in JSON -> the record of its image, each score from the tokens that write the numbers."""

import codecs
from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from transformers import PreTrainedTokenizerBase
from transformers.convert_slow_tokenizer import bytes_to_unicode

from coordexp.config.schema.evaluation import ScoreName
from coordexp.coord_tokens.bins import NUM_BINS
from coordexp.coord_tokens.vocab import end_id
from coordexp.detection.categories import CategoryIndex
from coordexp.evaluate.generate.generation import GeneratedSequence
from coordexp.evaluate.generate.parse import SCORES
from coordexp.evaluate.objects import DetectedObject, ImageLine, ImageRecord
from coordexp.evaluate.qwen_json import JsonObject, parse_json_answer

_BYTE_OF = {symbol: byte for byte, symbol in bytes_to_unicode().items()}


_MIN_BOXES = 10  # before anything is said about the scale of a model's coordinates


@dataclass(frozen=True)
class WrittenText:
    """The text that tokens write, and which characters each of them writes.

    Attributes:
        text: as the tokenizer decodes it; bytes that are no UTF-8 become U+FFFD.
        starts: the first character of each token. One that only goes on with a character has the same as its neighbour.
        stops: behind its last character.
    """

    text: str
    starts: tuple[int, ...]
    stops: tuple[int, ...]

    def tokens(self, chars: slice) -> slice:
        """Return the tokens that write some of these characters, at least one, also those that write more."""
        return slice(bisect_right(self.stops, chars.start), bisect_left(self.starts, chars.stop))


class JsonParser:
    """The answers of an untouched Qwen3-VL in its own words, for the images of one evaluation.

    It is an :class:`~coordexp.evaluate.generate.decode.AnswerFormat`.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        *,
        categories: CategoryIndex,
        score: ScoreName,
        thinks: bool = False,
    ) -> None:
        """Prepare for many answers.

        Args:
            tokenizer: of the model; byte-level, as Qwen's is.
            categories: finds the category of a label.
            score: the named score of a detection.
            thinks: the prompt has opened the model's reasoning already.
        """
        self._tokenizer = tokenizer
        self._categories = categories
        self._score: ScoreName = score
        self._thinks = thinks

    @property
    def end_id(self) -> int:
        """Ends an answer."""
        return end_id(self._tokenizer)

    @property
    def number_ids(self) -> range:
        """No token is known to carry a number: JSON has numbers elsewhere, too."""
        return range(0)

    @property
    def open_id(self) -> None:
        """Braces open more than objects."""

    def grammar(self, vocab_size: int) -> None:
        """Return None: such an answer is decoded freely."""

    def record(self, seq: GeneratedSequence) -> ImageRecord:
        """Return everything that is kept of one image; there are no distributions over bins."""
        written = self.written(seq.ids)
        answer = parse_json_answer(written.text, thinks=self._thinks)
        return ImageRecord(
            image_id=seq.image_id,
            objects=tuple(self._object(seq, written, item) for item in answer.objects),
            failures=answer.failures,
            truncated=seq.truncated,
            num_tokens=len(seq.ids),
            token_ids=seq.ids,
        )

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
        return WrittenText("".join(pieces), tuple(starts), tuple(stops))

    def _bytes_of(self, token: int) -> bytes:
        symbols = self._symbols.get(token, "")  # a model can have more logits than its tokenizer has entries
        try:
            return bytes(_BYTE_OF[symbol] for symbol in symbols)
        except KeyError:
            return symbols.encode()

    @cached_property
    def _symbols(self) -> dict[int, str]:
        return {token: symbols for symbols, token in self._tokenizer.get_vocab().items()}

    def _object(self, seq: GeneratedSequence, written: WrittenText, item: JsonObject) -> DetectedObject:
        log_probs = seq.statistics.log_probs
        coords = [sum(log_probs[written.tokens(chars)]) for chars in item.box_chars]
        x1, y1, x2, y2 = item.box
        return DetectedObject(
            desc=item.label,
            category_id=self._categories.find(item.label),
            bins=(x1, y1, x2, y2),
            expected=(x1 / NUM_BINS, y1 / NUM_BINS, x2 / NUM_BINS, y2 / NUM_BINS),
            width=(0.0, 0.0, 0.0, 0.0),
            score=SCORES[self._score](coords, log_probs[written.tokens(item.label_chars)]),
        )


def seem_in_pixels(images: Sequence[ImageLine], sizes_px: Mapping[int, tuple[int, int]]) -> bool:
    """Return whether the numbers of an evaluation look like pixels, although each is in 0 to 1000.

    In images of less than 1000 pixels, thousandths soon exceed the number of pixels; pixels never do.

    Args:
        images: what was answered.
        sizes_px: image id -> width and height.
    """
    small = [image for image in images if max(sizes_px[image.image_id]) < NUM_BINS]
    boxes = [(sizes_px[image.image_id], item.bins) for image in small for item in image.objects]
    return len(boxes) >= _MIN_BOXES and all(
        max(x1, x2) <= width and max(y1, y2) <= height for (width, height), (x1, y1, x2, y2) in boxes
    )
