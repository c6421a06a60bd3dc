"""Files of answers: what a model wrote for each picture, before boxes are read from it.

Engines and interfaces wrap the same text in different records: our own ``answers.jsonl`` and ``{"image_id", "text"}``,
vLLM's ``outputs``, OpenAI's batch output (also vLLM's), Gemini's and Anthropic's batches, or a map of file names.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from coordexp.detection.forms.content import records
from coordexp.detection.forms.keys import Fields, Json, Key, as_number, fields_of, is_object, keys_under
from coordexp.detection.names.images import ImageNames
from coordexp.errors import DataError, counted, show

_IMAGE_KEYS = (
    "imageid", "imgid", "filename", "imagename", "image", "img", "file", "imagepath", "imgpath", "path", "picture",
    "imagefile", "customid", "key",
)  # fmt: skip
_TEXT_KEYS = (
    "text", "response", "answer", "prediction", "predict", "output", "generatedtext", "generation", "completion",
    "rawoutput", "rawresponse", "modeloutput", "rawtext", "content", "pred", "resps", "filteredresps",
)  # fmt: skip
_REASONS_OF_A_WHOLE_ANSWER = frozenset({"stop", "eos", "eos_token", "end_turn", "stop_sequence"})
_REASONS_OF_A_CUT_ANSWER = frozenset({"length", "max_tokens"})


@dataclass(frozen=True)
class AnswerRecord:
    """A record of a file of answers.

    Attributes:
        place: the file and the line, for messages.
        keys: what may name the image, in the order in which it is tried.
        text: what the model wrote, or the object that its own processor makes of it; None if the record has no text.
        token_ids: the answer as token ids, if the record has them; an engine may give both.
        finish_reason: as the engine says it.
        failure: why there is no answer, if the record says that the request failed.
        label: the category of the boxes, if the answer itself names none.
    """

    place: str
    keys: tuple[Key, ...]
    text: object = None
    token_ids: object = None
    finish_reason: object = None
    failure: str = ""
    label: str | None = None

    @property
    def is_cut(self) -> bool | None:
        """Whether the limit of length ended the answer; None if the engine's reason says neither yes nor no."""
        if self.finish_reason is None:
            return False
        reason = str(self.finish_reason).lower()
        if reason in _REASONS_OF_A_CUT_ANSWER:
            return True
        return False if reason in _REASONS_OF_A_WHOLE_ANSWER else None


class _Written(NamedTuple):
    """What a record says of one answer; the fields are those of :class:`AnswerRecord`."""

    text: object = None
    token_ids: object = None
    finish_reason: object = None
    failure: str = ""


def answer_of(value: object, place: str = "") -> AnswerRecord | None:
    """Return the answer that a record holds; None if it is no record of an answer.

    Args:
        value: the record as it was parsed.
        place: the file and the line, for messages.
    """
    if not is_object(value):
        return None
    written = _written(value)
    if written is None:
        return None

    fields = fields_of(value)
    keys = keys_under(fields, _IMAGE_KEYS)
    pictures = fields.get("images")
    if isinstance(pictures, list) and len(pictures) == 1 and isinstance(pictures[0], str):  # ms-swift's
        keys.append(pictures[0])
    keys += keys_under(fields, ["id"])  # Last: it often counts records.
    label = fields.get("label")
    return AnswerRecord(
        place=place,
        keys=tuple(keys),
        text=written.text,
        token_ids=written.token_ids,
        finish_reason=written.finish_reason,
        failure=written.failure,
        label=label if isinstance(label, str) else None,
    )


def read_answers(path: Path) -> list[AnswerRecord]:
    """Read a file of answers: a record a line, one list of records, or one map of image to text.

    Raises:
        DataError: naming the line that is no record of an answer, or whose request failed.
    """
    if path.suffix.lower() in (".csv", ".tsv", ".parquet"):
        raise DataError(
            f"{path}: a table, which is not read; expected JSON lines, with pandas: "
            'table.to_json("answers.jsonl", orient="records", lines=True) with columns image_id (or file_name) and text'
        )
    answers: list[AnswerRecord] = []
    for place, value in records(path):
        if not is_object(value):
            raise DataError(f"{place}: expected an object with image_id and text, got {show(value)}")
        if value.get("text") is not None and value.get("token_ids") is not None:
            raise DataError(f"{place}: expected text or token_ids, one of them")
        answer = answer_of(value, place)
        is_map_of_texts = bool(value) and all(isinstance(text, str) for text in value.values())
        if answer is not None:
            answers.append(answer)
        elif is_map_of_texts:
            answers += [AnswerRecord(f"{path}: {show(name)}", (name,), text) for name, text in value.items()]
        else:
            raise DataError(
                f"{place}: expected text or token_ids with image_id or file_name, got {', '.join(list(value)[:6])}"
            )
    failed = [answer for answer in answers if answer.failure]
    if failed:
        raise DataError(
            f"{path}: {len(failed)} of {counted(len(answers), 'request')} failed, the first at {failed[0].place}: "
            f"{failed[0].failure}; ask for these again"
        )
    return answers


@dataclass(frozen=True)
class AnsweredImages:
    """The image of each answer of a file, and a remark if some were found by another sign than the image id."""

    image_ids: list[int]
    remarks: tuple[str, ...]


def images_of(
    answers: Sequence[AnswerRecord], path: Path, *, known: Collection[int], names: ImageNames
) -> AnsweredImages:
    """Find the image of each answer: by its id, by the name of its file, or by the number in its custom id.

    Args:
        answers: of one file.
        path: of the file, for the remark.
        known: ids of the annotations' images.
        names: their file names.

    Raises:
        DataError: naming the first answer whose image is not among those of the annotations.
    """
    numbers = _numbers_of_requests(answers, known, names)
    if numbers is not None:
        first_key = answers[0].keys[0]
        remark = (
            f"{path.name}: the number in the ids of {len(numbers)} requests is read as the image id, "
            f"so {show(first_key)} is the answer for image {numbers[0]}"
        )
        return AnsweredImages(numbers, (remark,))

    image_ids: list[int] = []
    unknown: list[AnswerRecord] = []
    num_by_name = 0
    for answer in answers:
        image_id = _image_id(answer.keys, known, names)
        if image_id is None:
            unknown.append(answer)
            continue
        image_ids.append(image_id)
        if image_id not in answer.keys and str(image_id) not in answer.keys:
            num_by_name += 1
    if unknown:
        how_many = f" ({len(unknown)} of {len(answers)} answers are of no such image)" if len(unknown) > 1 else ""
        raise DataError(f"{unknown[0].place}: {_unknown_image(unknown[0].keys)}{how_many}")
    if not num_by_name:
        return AnsweredImages(image_ids, ())
    remark = f"{path.name}: {num_by_name} of {len(answers)} answers were found by file name, not by image_id"
    return AnsweredImages(image_ids, (remark,))


def _image_id(keys: Sequence[Key], known: Collection[int], names: ImageNames) -> int | None:
    """Return the image that one of the keys means, by its id or by the name of its file."""
    for key in keys:
        number = as_number(key)
        if isinstance(number, int) and number in known:
            return number
        image_id = names.numbered(key) if isinstance(key, int) else names.find(key)
        if image_id is not None:
            return image_id
    return None


def _numbers_of_requests(
    answers: Sequence[AnswerRecord], known: Collection[int], names: ImageNames
) -> list[int] | None:
    """Return the numbers behind the common beginning of custom ids, if they are exactly the ids of all images.

    ``request-17`` is the seventeenth request for some people and image 17 for others. If the numbers are all the ids
    that there are, no more and no fewer, they are taken as ids; otherwise nobody can know, and None is returned.
    """
    if any(_image_id(answer.keys, known, names) is not None for answer in answers):
        return None
    beginnings: set[str] = set()
    numbers: list[int] = []
    for answer in answers:
        custom_id = answer.keys[0] if answer.keys else None
        if not isinstance(custom_id, str):
            return None
        beginning = custom_id.rstrip("0123456789")
        digits = custom_id[len(beginning) :]
        if not 0 < len(digits) < 19:  # No number, or one that may not fit an id of 64 bits.
            return None
        beginnings.add(beginning)
        numbers.append(int(digits))
    return numbers if len(beginnings) == 1 and sorted(numbers) == sorted(known) else None


def _unknown_image(keys: Sequence[Key]) -> str:
    if not keys:
        return "the record names no image; expected image_id, file_name or custom_id"
    if isinstance(keys[0], int):
        return f"the annotations have no image {keys[0]}; expected ids of theirs"
    return (
        f"the annotations have no image called {show(keys[0])}; expected the image's id or the name of its file there, "
        'or beside it as "image_id" or "file_name"'
    )


def _written(record: Json) -> _Written | None:
    """Return what a record says of its answer; None if it holds no answer."""
    fields = fields_of(record)
    reason = fields.get("finishreason")
    if "tokenids" in fields:
        return _Written(fields.get("text"), fields["tokenids"], reason)
    if "text" in fields:
        text = fields["text"]
        is_answer = text is None or isinstance(text, str) or is_object(text)
        return _Written(text, finish_reason=reason) if is_answer else None
    outputs = fields.get("outputs")
    if isinstance(outputs, list):  # vLLM's RequestOutput
        return _only_choice(outputs)
    written_by_interface = _of_interface(fields)
    if written_by_interface is not None:
        return written_by_interface
    for name in _TEXT_KEYS[1:]:
        text = fields.get(name)
        while isinstance(text, list) and len(text) == 1:  # The resps of lm-eval and lmms-eval are lists of lists.
            text = text[0]
        if isinstance(text, str):
            return _Written(text, finish_reason=reason)
    return None


def _of_interface(fields: Fields) -> _Written | None:
    """Return what a reply of OpenAI's, Gemini's or Anthropic's interface says, alone or as a record of a batch.

    OpenAI      {"response": {"body":    {"choices":    [...]}}}
    Gemini      {"response":             {"candidates": [...]}}
    Anthropic   {"result":   {"message": {"content":    [...], "stop_reason": ...}}}
    """
    reply = fields.get("response", fields.get("result"))
    error = fields.get("error")
    if reply is None and error is not None and ("customid" in fields or "key" in fields):
        return _Written(failure=show(error))
    is_wrapped = is_object(reply)
    body: Fields = reply if is_object(reply) else fields
    for name in ("body", "message"):
        inner = body.get(name)
        if is_object(inner):
            body = inner

    for name in ("choices", "candidates"):
        choices = body.get(name)
        if isinstance(choices, list):
            return _only_choice(choices)
    if is_wrapped and isinstance(body.get("content"), list):
        return _Written(_text_of_parts(body["content"]), finish_reason=body.get("stop_reason"))
    failure = body.get("error")
    if is_wrapped and failure is not None:
        return _Written(failure=show(failure))
    return None


def _only_choice(choices: "list[object]") -> _Written | None:
    """Return what the one choice of a reply says; of several nobody knows which is meant."""
    if len(choices) != 1:
        return _Written(failure=f"{counted(len(choices), 'choice')} for one image, expected one")
    choice = choices[0]
    if isinstance(choice, str):
        return _Written(choice)
    if not is_object(choice):
        return None

    fields = fields_of(choice)
    message = fields.get("message", fields.get("content"))
    text = fields.get("text")
    if is_object(message):
        text = message.get("content", message.get("parts"))
    elif text is None:
        text = message
    text = _text_of_parts(text)
    token_ids = fields.get("tokenids")
    reason = fields.get("finishreason")
    if text is None and token_ids is None:
        return _Written(finish_reason=reason, failure=f"the reply holds no text (finish_reason {show(reason)})")
    return _Written(text, token_ids, reason)


def _text_of_parts(content: object) -> object:
    """Return the text of a content; of a list of parts the texts of all parts, joined."""
    if not isinstance(content, list):
        return content
    texts = [item.get("text") for item in content if is_object(item)]  # pyright: ignore[reportUnknownVariableType]
    return "".join(text for text in texts if isinstance(text, str))
