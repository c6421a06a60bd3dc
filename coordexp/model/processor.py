"""Tokenizer, image processor and chat template as one object.

It does for text and images what Qwen3-VL's own processor does. The latter also builds a video processor, which needs
torchvision.
"""

import copy
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, cast

import torch
from PIL import Image
from transformers import AutoTokenizer, PreTrainedConfig, PreTrainedTokenizerBase

from coordexp.data.images.patches import ImageProcessor
from coordexp.data.prompt import IMAGE_TOKEN, TEMPLATE_ARGUMENTS
from coordexp.errors import CheckpointError, DataError, kind_of, show
from coordexp.files import JsonValue, kept_model, parse_model, write_text
from coordexp.model.checkpoint.directory import library_errors, model_config, read_json, refuse_lfs_pointers
from coordexp.model.checkpoint.stored_model import Dimensions

if TYPE_CHECKING:
    from transformers import BatchFeature, Qwen2VLImageProcessorPil

Message = dict[str, object]

_TOKENIZER_FILES = ("tokenizer.json", "vocab.json")
_IMAGE_CONFIG = "preprocessor_config.json"
_PROCESSOR_CONFIG = "processor_config.json"
_IMAGE_CONFIGS = (_IMAGE_CONFIG, _PROCESSOR_CONFIG)
_CARRIED = (*_IMAGE_CONFIGS, "video_preprocessor_config.json")  # copied into every checkpoint that we write
_LEGACY_TEMPLATE = "chat_template.json"  # of processors before transformers 4.50

# Options of our call, which transformers would write into the tokenizer's configuration as if they belonged there.
_LOADING_OPTIONS = ("local_files_only", "is_local", "trust_remote_code")


@dataclass(frozen=True)
class Processor:
    """What turns text and images into a model's inputs.

    Attributes:
        tokenizer: with its chat template.
        image_processor: with the PIL backend, which gives the same numbers on every machine.
        files: texts of the checkpoint's own processor files, by name. They are copied into what we write, so that it
            loads with every version of ``AutoProcessor`` that loads the original.
    """

    tokenizer: PreTrainedTokenizerBase
    image_processor: "Qwen2VLImageProcessorPil"
    files: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def from_directory(cls, directory: Path) -> "Processor":
        """Read the processor of a checkpoint.

        Raises:
            CheckpointError: if a file is missing or damaged, or images would not have the patches of the model.
        """
        from transformers import Qwen2VLImageProcessorPil  # here, because it imports models, which takes two seconds

        # The configuration comes first: the tokenizer's classes read it too, and would be blamed for a fault in it.
        model = model_config(directory)
        tokenizer = read_tokenizer(directory)
        _require(directory, _IMAGE_CONFIGS, kind="image processor")
        with library_errors(f"{directory}: image processor does not load"):
            image_processor = Qwen2VLImageProcessorPil.from_pretrained(directory, local_files_only=True)
        _check_images(image_processor, model, directory)
        names = [name for name in _CARRIED if (directory / name).is_file()]
        files = {name: (directory / name).read_text("utf-8") for name in names}
        return cls(tokenizer, image_processor, files)

    @property
    def template_arguments(self) -> dict[str, bool]:
        """The arguments of our renderings that this chat template reads. A server of the model must give them too."""
        template = str(self.tokenizer.chat_template)
        return {name: value for name, value in TEMPLATE_ARGUMENTS.items() if name in template}

    def apply_chat_template(self, messages: Sequence[Message], *, add_generation_prompt: bool = False) -> str:
        """Render messages to text, with one image token for each image."""
        rendered = self.tokenizer.apply_chat_template(
            cast("list[dict[str, str]]", list(messages)),  # the annotation of transformers leaves out images
            tokenize=False,
            add_generation_prompt=add_generation_prompt,
            enable_thinking=TEMPLATE_ARGUMENTS["enable_thinking"],
        )
        return str(rendered)

    def __call__(
        self, *, text: str | Sequence[str], images: Image.Image | Sequence[Image.Image] | None = None
    ) -> "BatchFeature":
        """Encode texts and their images.

        Args:
            text: one text or several. Each image is one ``<|image_pad|>`` in them.
            images: in the order of their places in the texts.

        Returns:
            ``input_ids, attention_mask, mm_token_type_ids`` ``[B, L]``, padded on the tokenizer's side; with images
            also ``pixel_values`` and ``image_grid_thw``.

        Raises:
            DataError: if the texts have places for another number of images.
        """
        from transformers import BatchFeature

        texts = [text] if isinstance(text, str) else list(text)
        pictures = [images] if isinstance(images, Image.Image) else list(images or ())
        num_places = sum(each_text.count(IMAGE_TOKEN) for each_text in texts)
        if num_places != len(pictures):
            raise DataError(
                f"the texts place {num_places} images with {IMAGE_TOKEN}, but {len(pictures)} images are given"
            )
        vision: dict[str, torch.Tensor] = {}
        if pictures:
            vision = dict(self.image_processor(images=pictures, return_tensors="pt"))
            num_patches = vision["image_grid_thw"].prod(dim=1)
            num_tokens = num_patches // self.image_processor.merge_size**2
            texts = _with_image_tokens(texts, num_tokens.tolist())
        encoded = self.tokenizer(texts, padding=True, add_special_tokens=False, return_tensors="pt")
        ids: torch.Tensor = encoded["input_ids"]
        is_image = torch.eq(ids, cast("int", self.tokenizer.convert_tokens_to_ids(IMAGE_TOKEN)))
        inputs = {"input_ids": ids, "attention_mask": encoded["attention_mask"]}
        return BatchFeature({**inputs, "mm_token_type_ids": is_image.to(torch.int64), **vision})

    def with_limits(self, *, min_pixels: int, max_pixels: int) -> "Processor":
        """Return the processor with other limits of an image's area, in memory and in the files that it saves."""
        size = {"shortest_edge": min_pixels, "longest_edge": max_pixels}
        if size == dict(self.image_processor.size):
            return self
        image_processor = copy.deepcopy(self.image_processor)
        image_processor.size = type(self.image_processor.size)(**size)
        files = dict(self.files)
        for name in self.files.keys() & set(_IMAGE_CONFIGS):
            content = parse_model(dict[str, JsonValue], files[name])
            section = content.get("image_processor") if name == _PROCESSOR_CONFIG else content
            if not isinstance(section, dict):
                continue
            section["size"] = dict[str, JsonValue](size)
            for older_key, value in (("min_pixels", min_pixels), ("max_pixels", max_pixels)):
                if older_key in section:  # transformers would prefer it to the size
                    section[older_key] = value
            files[name] = json.dumps(content, indent=2, ensure_ascii=False) + "\n"
        return replace(self, image_processor=image_processor, files=files)

    def save_pretrained(self, directory: Path | str) -> None:
        """Write tokenizer, chat template and image processor as Hugging Face files."""
        self.tokenizer.save_pretrained(directory)
        if not self.files.keys() & set(_IMAGE_CONFIGS):  # otherwise the files below have it
            self.image_processor.save_pretrained(directory)
        for name, text in self.files.items():
            write_text(Path(directory) / name, text)


def _with_image_tokens(texts: Sequence[str], num_tokens: Iterable[int]) -> list[str]:
    """Repeat each image token of the texts as often as its image has tokens."""
    counts = iter(num_tokens)
    expanded: list[str] = []
    for text in texts:
        before, *after_images = text.split(IMAGE_TOKEN)
        expanded.append(before + "".join(IMAGE_TOKEN * next(counts) + after for after in after_images))
    return expanded


@dataclass
class ImageNumbers:
    """The numbers of an image processor as its file states them.

    Not frozen, so that it satisfies the same protocol as the class of transformers.
    """

    patch_size: int
    merge_size: int
    temporal_patch_size: int
    image_mean: list[float]
    image_std: list[float]
    size: dict[str, int]
    rescale_factor: float = 1 / 255  # the default of transformers, which published files leave out
    resample: int = 3
    min_pixels: None = None  # older names of the size; a file that has them is read by transformers instead
    max_pixels: None = None


@dataclass(frozen=True)
class StoredProcessor:
    """The parts of a processor that a dry run needs, read in one second instead of three."""

    tokenizer: PreTrainedTokenizerBase
    image_processor: ImageProcessor

    @classmethod
    def from_directory(cls, directory: Path) -> "StoredProcessor | Processor":
        """Read the files of a checkpoint. If they leave out a number, load the whole :class:`Processor` instead."""
        numbers = None if _is_overruled(directory) else kept_model(ImageNumbers, directory / _IMAGE_CONFIG)
        if numbers is None:
            return Processor.from_directory(directory)
        model = model_config(directory)
        tokenizer = read_tokenizer(directory)
        _check_images(numbers, model, directory)
        return cls(tokenizer, numbers)


def read_tokenizer(directory: Path) -> PreTrainedTokenizerBase:
    """Read the tokenizer of a checkpoint, with its chat template.

    Raises:
        CheckpointError: if one of the two is missing or damaged.
    """
    refuse_lfs_pointers(directory)
    _require(directory, _TOKENIZER_FILES, kind="tokenizer")
    with library_errors(f"{directory}: tokenizer does not load"):
        tokenizer = AutoTokenizer.from_pretrained(directory, local_files_only=True, trust_remote_code=False)
    for option in _LOADING_OPTIONS:
        tokenizer.init_kwargs.pop(option, None)
    legacy = directory / _LEGACY_TEMPLATE
    if not tokenizer.chat_template and legacy.is_file():
        tokenizer.chat_template = read_json(legacy).get("chat_template")
    if not tokenizer.chat_template:
        raise CheckpointError(
            f"{directory}: no chat template; copy chat_template.jinja or {_LEGACY_TEMPLATE} from its original"
        )
    if not isinstance(tokenizer.chat_template, str):
        raise CheckpointError(f"{directory}: the chat template is {kind_of(tokenizer.chat_template)}, expected a text")
    return tokenizer


def _require(directory: Path, names: Sequence[str], *, kind: str) -> None:
    """Raise a CheckpointError if none of the files is there."""
    if not any((directory / name).is_file() for name in names):
        raise CheckpointError(f"{directory}: no {kind} (expected {' or '.join(names)})")


def _is_overruled(directory: Path) -> bool:
    """Return whether ``processor_config.json`` has the image processor, which transformers then prefers."""
    file = directory / _PROCESSOR_CONFIG
    return file.is_file() and isinstance(read_json(file).get("image_processor"), dict)


def _check_images(processor: ImageProcessor, model: PreTrainedConfig, directory: Path) -> None:
    """Raise a CheckpointError if images would have other patches than the model takes, or no limits of their area."""
    vision = Dimensions.of(model).vision
    patches = (processor.patch_size, processor.temporal_patch_size, processor.merge_size)
    model_patches = (vision.patch_size, vision.temporal_patch_size, vision.spatial_merge_size)
    if patches != model_patches:
        raise CheckpointError(
            f"{directory}: the image processor makes patches of {patches} (size, frames, merged), the model takes "
            f"{model_patches}; they do not belong together"
        )
    size = dict(processor.size)
    if size.keys() != {"shortest_edge", "longest_edge"}:
        file = _PROCESSOR_CONFIG if _is_overruled(directory) else _IMAGE_CONFIG
        raise CheckpointError(
            f"{directory / file}: size is {show(size)}; expected shortest_edge and longest_edge, the fewest and the "
            "most pixels of an image"
        )
