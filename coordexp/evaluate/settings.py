"""The settings of an evaluation: one object for training, ``evaluate``, ``predict`` and given answers."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from coordexp.config.schema.evaluation import ScoreName
from coordexp.coord_tokens.grammar.parse import FAILURE_KINDS
from coordexp.data.reading import Reading
from coordexp.errors import ConfigError
from coordexp.evaluate.generate.qwen_json import JSON_FAILURE_KINDS
from coordexp.metrics import Decoding

AnswerName = Literal["coord", "text", "qwen-json"]


@dataclass(frozen=True, kw_only=True)
class EvaluationSettings:
    """How to evaluate, equal for every group; picklable, so that workers elsewhere can take part.

    Attributes:
        batch_size: images generated together.
        max_new_tokens: length limit of an answer, the end token included.
        decoding: ``constrained`` (under the object grammar), ``free``, or both.
        score: the named score of a detection.
        aliases: further descriptions -> category names.
        details: whether to write ``analysis.json`` and ``distributions.json`` too.
        model: directory or hub id, or ``embedded``. An evaluation of training uses none of the settings from here on:
            it has its model and data in memory.
        adapter: directory of a trained adapter for ``model``.
        annotations: COCO instances file.
        images: folder of its images.
        reading: how the annotations are read.
        set_path: the set that was made of the annotations and images; None to make it for this evaluation alone.
        num_images: number of images, chosen by the data alone and spread over the number of objects; None for all.
        answer: the form of an answer: the target sequence in coord tokens (``coord``) or in digits (``text``), or the
            JSON of an untouched Qwen3-VL (``qwen-json``). None for coord tokens if the tokenizer has them, and digits
            if not.
        generations: file of answers that are read instead of generated; None to generate.
        prompt: the instruction. None for the prompt of training if the checkpoint records it, and the default of the
            answer's form if not. In the prompt of an untouched model, ``{categories}`` is replaced by the categories of
            the annotation file.
        max_pixels: image size limit. None for the limit of training if the checkpoint records it, and the checkpoint's
            own if not.
        num_threads: CPU threads of a process; None leaves it to torch. It can change last digits.
    """

    batch_size: int = 16
    max_new_tokens: int = 512
    decoding: tuple[Decoding, ...] = ("constrained", "free")
    score: ScoreName = "coord_desc"
    aliases: Mapping[str, str] = field(default_factory=dict[str, str])
    details: bool = True
    model: str = ""
    adapter: Path | None = None
    annotations: Path = Path()
    images: Path = Path()
    reading: Reading = field(default_factory=Reading)
    set_path: Path | None = None
    num_images: int | None = None
    answer: AnswerName | None = None
    generations: Path | None = None
    prompt: str | None = None
    max_pixels: int | None = None
    num_threads: int | None = None

    def __post_init__(self) -> None:
        """Refuse settings that contradict each other."""
        if self.generations is not None and len(self.decoding) != 1:
            raise ConfigError(
                "--generations: a file of answers is one decoding; expected --decoding constrained or free"
            )
        if self.answer == "qwen-json" and self.decoding != ("free",):
            raise ConfigError("--answer qwen-json is decoded freely only: the object grammar is not that of its JSON")

    @property
    def failure_kinds(self) -> Sequence[str]:
        """The kinds of malformed pieces that such answers can have."""
        return JSON_FAILURE_KINDS if self.answer == "qwen-json" else FAILURE_KINDS

    @property
    def headline(self) -> Decoding:
        """The decoding whose AP is the result."""
        has_one_decoding = self.generations is not None or self.answer == "qwen-json"
        return self.decoding[0] if has_one_decoding else "constrained"
