"""A model that is evaluated, with its tokenizer, image size, prompt and form of answer."""

import contextlib
import platform
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import torch
from peft import PeftModel
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from coordexp.coord_tokens.grammar.constrain import ObjectGrammar
from coordexp.data.dataset import DetectionDataset
from coordexp.data.images.patches import ImageSpec
from coordexp.data.prompt import IMAGE_TOKEN, Prompt
from coordexp.data.sample import Sample
from coordexp.errors import ConfigError, TokenizerError, counted
from coordexp.evaluate.generate.formats import SequenceFormat
from coordexp.evaluate.generate.qwen_json import JsonFormat

AnswerFormat = SequenceFormat | JsonFormat
_MAX_LENGTH = 32_768  # of prompt and image; the answer has its own limit


@dataclass(frozen=True)
class AnsweringModel:
    """A model that answers images.

    Attributes:
        model: its own generation defaults are ignored.
        tokenizer: of the prompt and the answers.
        image_spec: how patches become pixel values.
        answers: the form of its answers.
        encode: turns samples into prompts, without targets.
    """

    model: PreTrainedModel | PeftModel
    tokenizer: PreTrainedTokenizerBase
    image_spec: ImageSpec
    answers: AnswerFormat
    encode: Callable[[Sequence[Sample]], DetectionDataset]

    @property
    def device(self) -> torch.device:
        return self.model.device

    @property
    def hardware(self) -> str:
        """The name of the device; a CPU's with its number of threads."""
        if self.device.type == "cuda":
            return torch.cuda.get_device_name(self.device)
        return f"{_processor()}, {counted(torch.get_num_threads(), 'thread')}"

    @property
    def vocab_size(self) -> int:
        return int(self.model.config.get_text_config().vocab_size)

    @property
    def pad_id(self) -> int:
        """The padding token: it follows the end of an answer, and ends an answer as the end token does."""
        if not isinstance(self.tokenizer.pad_token_id, int):
            raise TokenizerError("the tokenizer has no padding token; expected pad_token in its configuration")
        return self.tokenizer.pad_token_id

    @property
    def image_token_id(self) -> int:
        """The token that stands for a patch of the image in a prompt."""
        token_id = self.tokenizer.convert_tokens_to_ids(IMAGE_TOKEN)
        if not isinstance(token_id, int):
            raise TokenizerError(f"the tokenizer has no token {IMAGE_TOKEN!r}")
        return token_id

    @cached_property
    def grammar(self) -> ObjectGrammar:
        """What constrained decoding allows, on the model's device; a ConfigError if answers have no grammar."""
        grammar = self.answers.grammar(self.vocab_size)
        if grammar is None:
            raise ConfigError("this kind of answer has no grammar to constrain it; use free decoding")
        return grammar.to(self.device)

    @contextlib.contextmanager
    def evaluating(self) -> Generator[None]:
        """Put every module in evaluation mode, and each back into its own mode afterwards."""
        modes = [(module, module.training) for module in self.model.modules()]
        self.model.eval()
        try:
            yield
        finally:
            for module, training in modes:
                module.training = training


def encoder_of_prompts(
    tokenizer: PreTrainedTokenizerBase, prompt: Prompt, image_spec: ImageSpec
) -> Callable[[Sequence[Sample]], DetectionDataset]:
    """Return what puts a prompt to samples, without targets."""

    def encode(samples: Sequence[Sample]) -> DetectionDataset:
        return DetectionDataset(
            samples=samples,
            tokenizer=tokenizer,
            vocab=None,
            prompt=prompt,
            image_spec=image_spec,
            max_objects=1,
            max_length=_MAX_LENGTH,
            seed=0,
        )

    return encode


def _processor() -> str:
    """Return the name of the CPU as the system tells it, or its architecture."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, "") or platform.processor() or platform.machine()
