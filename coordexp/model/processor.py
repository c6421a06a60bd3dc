"""Tokenizer, image processor and chat template as one object.

Does for text and images what Qwen3-VL's own processor does; that one also builds a video processor
and needs torchvision for it.
"""

import copy
import json
from collections.abc import Mapping, Sequence
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
_CARRIED = (*_IMAGE_CONFIGS, "video_preprocessor_config.json")
_LEGACY_TEMPLATE = "chat_template.json"  # where processors kept it before transformers 4.50

# Of how a tokenizer was loaded, which transformers would write into its configuration as if it belonged there.
_LOADING_OPTIONS = ("local_files_only", "is_local", "trust_remote_code")


@dataclass(frozen=True)
class Processor:
    """What turns text and images into a model's inputs.

    Attributes:
        tokenizer: with its chat template.
        image_processor: PIL backend, the same numbers on every machine.
        files: texts of the checkpoint's own processor files, by name; carried along, so that a checkpoint we write
            loads with ``AutoProcessor``, of any version, where the original did.
    """

    tokenizer: PreTrainedTokenizerBase
    image_processor: "Qwen2VLImageProcessorPil"
    files: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def from_directory(cls, directory: Path) -> "Processor":
        from transformers import Qwen2VLImageProcessorPil  # here: it brings transformers' models along, two seconds

        model = model_config(directory)  # first: a tokenizer's classes read it, too, and would be blamed for it
        tokenizer = read_tokenizer(directory)
        _require(directory, _IMAGE_CONFIGS, what="image processor")
        with library_errors(f"{directory}: image processor does not load"):
            image_processor = Qwen2VLImageProcessorPil.from_pretrained(directory, local_files_only=True)
        _check_images(image_processor, model, directory)
        present = (name for name in _CARRIED if (directory / name).is_file())
        return cls(tokenizer, image_processor, {name: (directory / name).read_text("utf-8") for name in present})

    @property
    def template_arguments(self) -> dict[str, bool]:
        """Those arguments of every rendering that this chat template reads; whoever serves the model must give them."""
        return {name: value for name, value in TEMPLATE_ARGUMENTS.items() if name in str(self.tokenizer.chat_template)}

    def apply_chat_template(self, messages: Sequence[Message], *, add_generation_prompt: bool = False) -> str:
        """Render messages to text, with one image token for each image."""
        rendered = self.tokenizer.apply_chat_template(
            cast("list[dict[str, str]]", list(messages)),  # its annotation leaves out messages with images
            tokenize=False,
            add_generation_prompt=add_generation_prompt,
            enable_thinking=TEMPLATE_ARGUMENTS["enable_thinking"],
        )
        return str(rendered)

    def __call__(
        self, *, text: str | Sequence[str], images: Image.Image | Sequence[Image.Image] | None = None
    ) -> "BatchFeature":
        """Encode texts that hold ``<|image_pad|>`` once for each of their ``images``, in the same order.

        Returns:
            ``input_ids, attention_mask, mm_token_type_ids`` ``[B, L]``, padded on the tokenizer's side;
            with images also ``pixel_values`` and ``image_grid_thw``.
        """
        from transformers import BatchFeature

        texts = [text] if isinstance(text, str) else list(text)
        pictures = [images] if isinstance(images, Image.Image) else list(images or ())
        placed = sum(one.count(IMAGE_TOKEN) for one in texts)
        if placed != len(pictures):
            raise DataError(f"the texts place {placed} images with {IMAGE_TOKEN}, but {len(pictures)} images are given")
        vision = dict(self.image_processor(images=pictures, return_tensors="pt")) if pictures else {}
        if pictures:
            counts = iter((vision["image_grid_thw"].prod(dim=1) // self.image_processor.merge_size**2).tolist())
            parts = [one.split(IMAGE_TOKEN) for one in texts]
            texts = [first + "".join(IMAGE_TOKEN * next(counts) + part for part in rest) for first, *rest in parts]
        encoded = self.tokenizer(texts, padding=True, add_special_tokens=False, return_tensors="pt")
        ids: torch.Tensor = encoded["input_ids"]
        is_image = torch.eq(ids, cast("int", self.tokenizer.convert_tokens_to_ids(IMAGE_TOKEN)))
        inputs = {"input_ids": ids, "attention_mask": encoded["attention_mask"]}
        return BatchFeature({**inputs, "mm_token_type_ids": is_image.to(torch.int64), **vision})

    def with_limits(self, *, min_pixels: int, max_pixels: int) -> "Processor":
        """Return the processor with other limits of the image size, in memory and in what it saves."""
        size = {"shortest_edge": min_pixels, "longest_edge": max_pixels}
        if size == dict(self.image_processor.size):
            return self
        image_processor = copy.deepcopy(self.image_processor)
        image_processor.size = type(self.image_processor.size)(**size)
        files = dict(self.files)
        for name in self.files.keys() & set(_IMAGE_CONFIGS):
            stated = parse_model(dict[str, JsonValue], files[name])
            section = stated.get("image_processor") if name == _PROCESSOR_CONFIG else stated
            if not isinstance(section, dict):
                continue
            older = {"min_pixels": min_pixels, "max_pixels": max_pixels}  # which would win
            section |= {"size": size, **{key: older[key] for key in older.keys() & section.keys()}}
            files[name] = json.dumps(stated, indent=2, ensure_ascii=False) + "\n"
        return replace(self, image_processor=image_processor, files=files)

    def save_pretrained(self, directory: Path | str) -> None:
        """Write tokenizer, chat template and image processor as Hugging Face files."""
        self.tokenizer.save_pretrained(directory)
        if not self.files.keys() & set(_IMAGE_CONFIGS):
            self.image_processor.save_pretrained(directory)
        for name, text in self.files.items():
            write_text(Path(directory) / name, text)


@dataclass
class ImageNumbers:
    """The numbers of an image processor as its file states them; not frozen, as the class they stand for is not."""

    patch_size: int
    merge_size: int
    temporal_patch_size: int
    image_mean: list[float]
    image_std: list[float]
    size: dict[str, int]
    rescale_factor: float = 1 / 255  # what Hugging Face's class begins with, and published files leave out
    resample: int = 3
    min_pixels: None = None  # older names of the sizes, which are left to the class
    max_pixels: None = None


@dataclass(frozen=True)
class StoredProcessor:
    """What a dry run reads of a processor: a second instead of three."""

    tokenizer: PreTrainedTokenizerBase
    image_processor: ImageProcessor

    @classmethod
    def from_directory(cls, directory: Path) -> "StoredProcessor | Processor":
        """Read the files of a checkpoint directory; load it all where these leave out numbers of the images."""
        numbers = None if _is_overruled(directory) else kept_model(ImageNumbers, directory / _IMAGE_CONFIG)
        if numbers is None:
            return Processor.from_directory(directory)
        model = model_config(directory)
        tokenizer = read_tokenizer(directory)
        _check_images(numbers, model, directory)
        return cls(tokenizer, numbers)


def read_tokenizer(directory: Path) -> PreTrainedTokenizerBase:
    """Read the tokenizer of a checkpoint, with its chat template."""
    refuse_lfs_pointers(directory)
    _require(directory, _TOKENIZER_FILES, what="tokenizer")
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


def _require(directory: Path, names: Sequence[str], *, what: str) -> None:
    if not any((directory / name).is_file() for name in names):
        raise CheckpointError(f"{directory}: no {what} (expected {' or '.join(names)})")


def _is_overruled(directory: Path) -> bool:
    """Return whether the image processor is in the processor's own file, which transformers takes first."""
    file = directory / _PROCESSOR_CONFIG
    return file.is_file() and isinstance(read_json(file).get("image_processor"), dict)


def _check_images(processor: ImageProcessor, model: PreTrainedConfig, directory: Path) -> None:
    """Refuse an image processor whose images have other patches than the model takes, or no limits of their size."""
    vision = Dimensions.of(model).vision
    made = (processor.patch_size, processor.temporal_patch_size, processor.merge_size)
    taken = (vision.patch_size, vision.temporal_patch_size, vision.spatial_merge_size)
    if made != taken:
        raise CheckpointError(
            f"{directory}: the image processor makes patches of {made} (size, frames, merged), the model takes "
            f"{taken}; they do not belong together"
        )
    size = dict(processor.size)
    if size.keys() != {"shortest_edge", "longest_edge"}:
        file = _PROCESSOR_CONFIG if _is_overruled(directory) else _IMAGE_CONFIG
        raise CheckpointError(
            f"{directory / file}: size is {show(size)}; expected shortest_edge and longest_edge, the fewest and the "
            "most pixels of an image"
        )
