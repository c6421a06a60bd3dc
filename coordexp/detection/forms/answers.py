"""Files of answers: what a model wrote for each picture, before anybody has looked for boxes in it.

Engines and interfaces wrap the same text in different records: our own ``answers.jsonl`` and ``{"image_id", "text"}``,
vLLM's ``outputs``, OpenAI's batch output (also vLLM's), Gemini's and Anthropic's batches, or a map of file names.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from coordexp.detection.forms.content import records
from coordexp.detection.forms.keys import Json, Key, as_number, fields_of, is_key, is_object
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
_WHOLE = frozenset({"stop", "eos", "eos_token", "end_turn", "stop_sequence"})
_CUT = frozenset({"length", "max_tokens"})


@dataclass(frozen=True)
class AnswerRecord:
    """A record of a file of answers.

    Attributes:
        place: the file and the line, for messages.
        keys: what may name the image, in the order in which it is tried.
        text: what was written; of some models the object that their own processor makes of it. None: nothing is there.
        token_ids: the same as token ids, where the record has those; an engine may give both.
        finish_reason: as the engine says it.
        failure: why there is no answer, where the record says that the request failed.
        label: the category of boxes whose answer names none.
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
        """Whether the limit of length ended the answer; None where its end is neither that nor an ordinary one."""
        if self.finish_reason is None:
            return False
        reason = str(self.finish_reason).lower()
        return True if reason in _CUT else False if reason in _WHOLE else None


def answer_of(value: object, place: str = "") -> AnswerRecord | None:
    """Return the answer that a record holds; None where it is no such record."""
    if not is_object(value):
        return None
    fields = fields_of(value)
    keys = tuple(key for name in _IMAGE_KEYS if is_key(key := fields.get(name)))
    pictures = fields.get("images")
    if isinstance(pictures, list) and len(pictures) == 1 and isinstance(pictures[0], str):  # ms-swift's
        keys = (*keys, pictures[0])
    record_id = fields.get("id")
    if is_key(record_id):  # last: it often counts records
        keys = (*keys, record_id)
    label = fields.get("label")
    written = _written(value)
    if written is None:
        return None
    return AnswerRecord(place, keys, *written, label=label if isinstance(label, str) else None)


def read_answers(path: Path) -> list[AnswerRecord]:
    """Read a file of answers: a record a line, one list of records, or one map of image to text.

    Raises:
        DataError: naming the line that is no such record, or that holds a request that failed.
    """
    if path.suffix.lower() in (".csv", ".tsv", ".parquet"):
        raise DataError(
            f"{path}: a table, which is not read; expected JSON lines, with pandas: "
            'table.to_json("answers.jsonl", orient="records", lines=True) with columns image_id (or file_name) and text'
        )
    answers: list[AnswerRecord] = []
    for place, value in records(path):
        answer = answer_of(value, place)
        if is_object(value) and value.get("text") is not None and value.get("token_ids") is not None:
            raise DataError(f"{place}: expected text or token_ids, one of them")
        if answer is not None:
            answers.append(answer)
        elif is_object(value) and value and all(isinstance(text, str) for text in value.values()):
            answers += [AnswerRecord(f"{path}: {show(name)}", (name,), text) for name, text in value.items()]
        elif is_object(value):
            raise DataError(
                f"{place}: expected text or token_ids with image_id or file_name, got {', '.join(list(value)[:6])}"
            )
        else:
            raise DataError(f"{place}: expected an object with image_id and text, got {show(value)}")
    failed = [answer for answer in answers if answer.failure]
    if failed:
        raise DataError(
            f"{path}: {len(failed)} of {counted(len(answers), 'request')} failed, the first at {failed[0].place}: "
            f"{failed[0].failure}; ask for these again"
        )
    return answers


@dataclass(frozen=True)
class AnsweredImages:
    """The image of each answer of a file, and how they were found, where not by image id."""

    image_ids: list[int]
    remarks: tuple[str, ...]


def images_of(
    answers: Sequence[AnswerRecord], path: Path, *, known: Collection[int], names: ImageNames
) -> AnsweredImages:
    """Find the image of each answer: by its id, by the name of its file, or by the number in its custom id.

    Raises:
        DataError: naming the first answer whose image is not among those that are known.
    """
    numbers = _numbers_of_requests(answers, known, names)
    if numbers is not None:
        first = answers[0].keys[0]
        return AnsweredImages(
            numbers,
            (
                f"{path.name}: the number in the ids of {len(numbers)} requests is read as the image id, "
                f"so {show(first)} is the answer for image {numbers[0]}",
            ),
        )
    places = [_image_id(answer.keys, known, names) for answer in answers]
    unknown = [answer for answer, image_id in zip(answers, places, strict=True) if image_id is None]
    if unknown:
        how_many = f" ({len(unknown)} of {len(answers)} answers are of no such image)" if len(unknown) > 1 else ""
        raise DataError(f"{unknown[0].place}: {_unknown_image(unknown[0].keys)}{how_many}")
    image_ids = [image_id for image_id in places if image_id is not None]
    num_by_name = sum(
        image_id not in answer.keys and str(image_id) not in answer.keys
        for answer, image_id in zip(answers, image_ids, strict=True)
    )
    by_name = f"{path.name}: {num_by_name} of {len(answers)} answers were found by file name, not by image_id"
    return AnsweredImages(image_ids, (by_name,) if num_by_name else ())


def _image_id(keys: Sequence[Key], known: Collection[int], names: ImageNames) -> int | None:
    for key in keys:
        number = as_number(key)  # text with leading zeros is the name of a file
        if isinstance(number, int) and number in known:
            return number
        image_id = names.numbered(key) if isinstance(key, int) else names.find(key)
        if image_id is not None:
            return image_id
    return None


def _numbers_of_requests(
    answers: Sequence[AnswerRecord], known: Collection[int], names: ImageNames
) -> list[int] | None:
    """Return the numbers behind the common beginning of custom ids, if they are just the ids of all images.

    ``request-17`` is the seventeenth request for some and image 17 for others. Where the numbers are all the ids that
    there are, no more and no fewer, they are taken as ids; else nobody can know.
    """
    texts = [answer.keys[0] for answer in answers if answer.keys]
    if len(texts) < len(answers) or not all(isinstance(text, str) for text in texts):
        return None
    if any(_image_id(answer.keys, known, names) is not None for answer in answers):
        return None
    stems = [str(text).rstrip("0123456789") for text in texts]
    digits = [str(text)[len(stem) :] for text, stem in zip(texts, stems, strict=True)]
    if len(set(stems)) != 1 or not all(0 < len(number) < 19 for number in digits):
        return None
    numbers = [int(number) for number in digits]
    return numbers if sorted(numbers) == sorted(known) else None


def _unknown_image(keys: Sequence[Key]) -> str:
    if not keys:
        return "the record names no image; expected image_id, file_name or custom_id"
    if isinstance(keys[0], int):
        return f"the annotations have no image {keys[0]}; expected ids of theirs"
    return (
        f"the annotations have no image called {show(keys[0])}; expected the image's id or the name of its file there, "
        'or beside it as "image_id" or "file_name"'
    )


def _written(record: Json) -> tuple[object, object, object, str] | None:
    """Return text, token ids, reason of the end and failure of a record; None where it holds no answer."""
    fields = fields_of(record)
    reason = fields.get("finishreason")
    if "tokenids" in fields:
        return fields.get("text"), fields["tokenids"], reason, ""
    if "text" in fields:
        text = fields["text"]
        return (text, None, reason, "") if text is None or isinstance(text, str) or is_object(text) else None
    outputs = fields.get("outputs")
    if isinstance(outputs, list):  # vLLM's RequestOutput
        return _only_choice(outputs)
    wrapped = _of_interface(fields)
    if wrapped is not None:
        return wrapped
    for name in _TEXT_KEYS[1:]:
        text = fields.get(name)
        while isinstance(text, list) and len(text) == 1:  # lm-eval's and lmms-eval's resps are lists of lists
            text = text[0]
        if isinstance(text, str):
            return text, None, reason, ""
    return None


def _of_interface(fields: "dict[str, object] | object") -> tuple[object, object, object, str] | None:
    """Return what a reply of OpenAI's, Gemini's or Anthropic's interface says, alone or as a record of a batch."""
    if not is_object(fields):
        return None
    reply = fields.get("response", fields.get("result"))
    error = fields.get("error")
    if reply is None and error is not None and ("customid" in fields or "key" in fields):
        return None, None, None, show(error)
    body: object = reply if is_object(reply) else fields
    for name in ("body", "message"):
        inner = body.get(name) if is_object(body) else None
        body = inner if is_object(inner) else body
    if not is_object(body):
        return None
    for name in ("choices", "candidates"):
        choices = body.get(name)
        if isinstance(choices, list):
            return _only_choice(choices)
    if is_object(reply) and isinstance(body.get("content"), list):  # Anthropic's
        return _text_of_parts(body["content"]), None, body.get("stop_reason"), ""
    failure = body.get("error")
    if is_object(reply) and failure is not None:
        return None, None, None, show(failure)
    return None


def _only_choice(choices: "list[object]") -> tuple[object, object, object, str] | None:
    """Return what the one choice of a reply says; of several nobody knows which is meant."""
    if len(choices) != 1:
        return None, None, None, f"{counted(len(choices), 'choice')} for one image, expected one"
    choice = choices[0]
    if isinstance(choice, str):
        return choice, None, None, ""
    if not is_object(choice):
        return None
    fields = fields_of(choice)
    holder = fields.get("message", fields.get("content"))
    text = fields.get("text")
    if is_object(holder):
        text = holder.get("content", holder.get("parts"))
    elif text is None:
        text = holder
    text = _text_of_parts(text)
    token_ids = fields.get("tokenids")
    reason = fields.get("finishreason")
    if text is None and token_ids is None:
        return None, None, reason, f"the reply holds no text (finish_reason {show(reason)})"
    return text, token_ids, reason, ""


def _text_of_parts(content: object) -> object:
    """Return the text of a content that is given as a list of parts."""
    if not isinstance(content, list):
        return content
    texts = [part.get("text") for part in content if is_object(part)]  # pyright: ignore[reportUnknownVariableType]
    return "".join(text for text in texts if isinstance(text, str))
