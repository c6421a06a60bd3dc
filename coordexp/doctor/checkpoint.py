"""The base checkpoint of a run, as far as it is on this machine: the run's own checks, which read no weight."""

from dataclasses import dataclass

import torch
from huggingface_hub import constants
from transformers import PreTrainedConfig, Qwen3VLConfig

from coordexp.config.schema import RunConfig
from coordexp.coord_tokens.codec import NUM_BINS
from coordexp.coord_tokens.offset_adapter import DTYPES
from coordexp.doctor.memory import expanded_base, num_bytes
from coordexp.errors import CheckpointError, counted
from coordexp.findings import Check, attempt, failure, size_text, warning
from coordexp.model.checkpoint.directory import cached_checkpoint, find_checkpoint, hub_answers, is_hub_id
from coordexp.model.checkpoint.stored_model import Dimensions
from coordexp.train.setup.base import CheckedBase, check_attention_of, check_base
from coordexp.train.setup.encoding import Encoding

# The shapes of the published dense models, so that memory can be estimated before anything is downloaded.
# Source: their config.json on the hub.
_NUM_TOKENS = 151_669  # entries of their tokenizer
_MAX_PIXELS = 16_777_216  # of their image processor
_SMALL_TOWER = {"depth": 24, "hidden_size": 1024, "intermediate_size": 4096, "deepstack_visual_indexes": [5, 11, 17]}
_LARGE_TOWER = dict[str, object]()  # is transformers' default
# Hidden size, layers, heads and MLP width of the text; the vision tower; whether embedding and head are tied.
_PUBLISHED = {
    "2B": ((2048, 28, 16, 6144), _SMALL_TOWER, True),
    "4B": ((2560, 36, 32, 9728), _SMALL_TOWER, True),
    "8B": ((4096, 36, 32, 12288), _LARGE_TOWER, False),
}
_TEXT_KEYS = ("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size")


@dataclass(frozen=True)
class Base:
    """What is known of a checkpoint.

    Attributes:
        model: its configuration.
        dtype: the dtype that the run loads its weights in.
        offset_ids: ids of the coord tokens after the vocabulary is expanded, and of the structure tokens added behind
            them. For a text arm: an empty range, behind the entries of the tokenizer.
        encoding: tokenizer, prompt and image sizes; None if they are not on this machine, or could not be read.
        is_damaged: they are on this machine and could not be read, which another check reports as a failure.
    """

    model: PreTrainedConfig
    dtype: torch.dtype
    offset_ids: range
    encoding: Encoding | None
    is_damaged: bool = False

    @property
    def weights_bytes(self) -> int:
        """Bytes of all weights after the vocabulary is expanded."""
        return num_bytes(expanded_base(self.model, num_tokens=self.offset_ids.stop, dtype=self.dtype))

    def num_image_tokens(self, sizes_px: frozenset[tuple[int, int]], max_pixels: int | None) -> int:
        """Return how many tokens the largest image takes.

        Args:
            sizes_px: width and height of the images; empty if they are not known. Then the largest image that the
                processor allows is taken.
            max_pixels: the run's limit; None: that of the processor.
        """
        if self.encoding is not None and sizes_px:
            spec = self.encoding.image_spec
            return max(spec.num_tokens(width=width, height=height) for width, height in sizes_px)
        pixels = max_pixels or (_MAX_PIXELS if self.encoding is None else self.encoding.image_spec.max_pixels)
        vision = Dimensions.of(self.model).vision
        return max(1, pixels // (vision.patch_size * vision.spatial_merge_size) ** 2)


def examine_checkpoint(run: RunConfig) -> Check[Base | None]:
    """Check the base of a run.

    Returns:
        What is known of it; None if not even the shape of the model is.
    """
    missing: list[str] = []
    if is_hub_id(run.model.path):
        cached = yield from attempt(
            "checkpoint", lambda: cached_checkpoint(run.model.path, revision=run.model.revision)
        )
        if cached is None:
            return None
        directory, missing = cached
        if directory is None or missing:
            yield from _examine_download(run.model.path, missing)
    else:
        directory = yield from attempt("checkpoint", lambda: find_checkpoint(run.model.path, weights=False))
        if directory is None:
            return None

    yield from attempt("attention", lambda: check_attention_of(run))
    if directory is None or "config.json" in missing:
        model = published_config(run.model.path)
        if model is None:
            return None
        return Base(model, _dtype(run, model, None), _published_ids(run), encoding=None)

    checked = yield from check_base(run, directory, weights=not missing)
    if checked is None:
        return None
    dtype = _dtype(run, checked.model, checked)
    if checked.encoding is None:
        return Base(checked.model, dtype, _published_ids(run), encoding=None, is_damaged=True)
    return Base(checked.model, dtype, _offset_ids(checked.encoding), checked.encoding)


def _offset_ids(encoding: Encoding) -> range:
    """Return the ids that get trainable offsets, see :attr:`Base.offset_ids`."""
    vocab = encoding.vocab
    if vocab.numbers.are_text:
        num_tokens = len(encoding.tokenizer)
        return range(num_tokens, num_tokens)
    return range(vocab.coord_ids.start, vocab.coord_ids.stop + len(vocab.added_structure_ids))


def published_config(hub_id: str) -> Qwen3VLConfig | None:
    """Return the configuration of a model named ``.../Qwen3-VL-4B-...``; None for an unknown one."""
    for size, (text, vision, tied) in _PUBLISHED.items():
        if f"Qwen3-VL-{size}-" in f"{hub_id}-":
            return Qwen3VLConfig(
                text_config={
                    **dict(zip(_TEXT_KEYS, text, strict=True)),
                    **{"num_key_value_heads": 8, "head_dim": 128, "tie_word_embeddings": tied},
                },
                vision_config={**vision, "out_hidden_size": text[0]},
                tie_word_embeddings=tied,
            )
    return None


def _examine_download(hub_id: str, missing: list[str]) -> Check[None]:
    """Check that the missing files of a model could be downloaded; an empty ``missing``: all of them."""
    files = f"{counted(len(missing), 'file')} of {hub_id}, e.g. {missing[0]}" if missing else hub_id
    sentence = f"{files}: not in the cache {constants.HF_HUB_CACHE}"
    if constants.HF_HUB_OFFLINE:
        way_on = "HF_HUB_OFFLINE forbids to download; unset it, or give a directory"
        yield failure("checkpoint", CheckpointError(f"{sentence}, and {way_on}"))
    elif not hub_answers():
        way_on = "download it elsewhere and give the directory as model.path, or set HF_HOME to a cache that has it"
        yield failure("checkpoint", CheckpointError(f"{sentence}, and the hub does not answer; {way_on}"))
    else:
        size = "its weights"
        model = published_config(hub_id)
        if model is not None:
            base = expanded_base(model, num_tokens=0, dtype=torch.bfloat16)
            size = f"about {size_text(num_bytes(base))}"
        yield warning("checkpoint", f"{sentence}; a run would first download {size}")


def _published_ids(run: RunConfig) -> range:
    """Return what :attr:`Base.offset_ids` are if the tokenizer is that of the published models."""
    if run.text_arm:
        return range(_NUM_TOKENS, _NUM_TOKENS)
    num_structure = 2 if run.data.structure == "spec" else 0
    return range(_NUM_TOKENS + 1, _NUM_TOKENS + 1 + NUM_BINS + num_structure)


def _dtype(run: RunConfig, model: PreTrainedConfig, checked: CheckedBase | None) -> torch.dtype:
    """Return the dtype that the weights will have, found under ``auto`` as ``from_pretrained`` finds it."""
    if run.model.dtype != "auto":
        return DTYPES[run.model.dtype]
    if isinstance(model.dtype, torch.dtype):
        return model.dtype
    specs = [] if checked is None or checked.stored is None else checked.stored.weights.specs.values()
    dtypes = [spec.dtype for spec in specs if spec.dtype.is_floating_point]
    return max(set(dtypes), key=dtypes.count) if dtypes else torch.bfloat16
