"""The model of a checkpoint's configuration: its sizes, its weights by name, and whether the files hold them."""

import contextlib
import copy
import warnings
from collections.abc import Generator, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, cast

import torch
from transformers import Qwen3VLConfig, Qwen3VLTextConfig, Qwen3VLVisionConfig
from transformers.utils import logging

from coordexp.errors import CheckpointError
from coordexp.model.checkpoint.directory import CONFIG_FILE, foreign_errors, model_config
from coordexp.model.checkpoint.weights import StoredWeights

if TYPE_CHECKING:
    from transformers import PreTrainedModel

EMBEDDING = "model.language_model.embed_tokens.weight"
HEAD = "lm_head.weight"


@dataclass(frozen=True)
class Dimensions:
    """The sizes of a Qwen3-VL that memory and arithmetic depend on.

    Attributes:
        text: of the language model, its ``vocab_size`` that of the expanded vocabulary.
        vision: of the vision tower.
    """

    text: Qwen3VLTextConfig
    vision: Qwen3VLVisionConfig

    @classmethod
    def of(cls, config: Qwen3VLConfig) -> "Dimensions":
        """Take a configuration apart."""
        text, vision = config.text_config, config.vision_config
        assert isinstance(text, Qwen3VLTextConfig)
        assert isinstance(vision, Qwen3VLVisionConfig)
        return cls(text, vision)

    @property
    def query_width(self) -> int:
        """Numbers of a token's queries."""
        return self.text.num_attention_heads * self.text.head_dim

    @property
    def key_width(self) -> int:
        """Numbers that the keys of a token take; its values take as many again."""
        heads = self.text.num_key_value_heads
        return (self.text.num_attention_heads if heads is None else heads) * self.text.head_dim

    @property
    def patch_size(self) -> int:
        """Side of a patch in pixels."""
        return cast("int", self.vision.patch_size)  # annotated for models with two sides, too

    @property
    def temporal_patch_size(self) -> int:
        """Frames of a patch."""
        return cast("int", self.vision.temporal_patch_size)

    @property
    def merge_size(self) -> int:
        """Patches that become one token, along one side."""
        return self.vision.spatial_merge_size


@contextlib.contextmanager
def quiet() -> Generator[None]:
    """Load or wrap a model without third-party bars and deprecations; errors and our own messages pass."""
    drawn = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        with warnings.catch_warnings():
            # PEFT 0.21 asks transformers 5.23 by the name that transformers 6 will drop.
            warnings.filterwarnings("ignore", message="`is_gradient_checkpointing`", category=FutureWarning)
            yield
    finally:
        if drawn:
            logging.enable_progress_bar()


def empty_model(config: Qwen3VLConfig, *, dtype: torch.dtype) -> "PreTrainedModel":
    """Return the model of a configuration in evaluation mode, its parameters on the meta device, its buffers real.

    Raises:
        CheckpointError: if no model can be made of the configuration.
    """
    # Here: they take two seconds, and a dry run makes no model.
    from accelerate import init_empty_weights
    from transformers import AutoModelForImageTextToText, PreTrainedModel
    from transformers.initialization import no_init_weights

    # Parameters without data need no random numbers: to draw them for nobody is five sixths of the time.
    empty = init_empty_weights(include_buffers=False)
    file = Path(config.name_or_path or "") / CONFIG_FILE  # transformers notes the directory that it was read from
    text = config.get_text_config()
    if (text.pad_token_id or 0) >= text.vocab_size:
        raise CheckpointError(
            f"{file}: vocab_size is {text.vocab_size} and pad_token_id {text.pad_token_id}, so one of them is of "
            "another vocabulary; take configuration, weights and tokenizer from one checkpoint"
        )
    with foreign_errors(f"{file}: no model can be made of it"), quiet(), no_init_weights(), empty:
        # A copy, because making a model writes its dtype into the configuration.
        model = AutoModelForImageTextToText.from_config(copy.deepcopy(config), dtype=dtype)
    assert isinstance(model, PreTrainedModel)
    model.tie_weights()
    return model.eval()


def has_tied_head(model: "PreTrainedModel") -> bool:
    """Return whether embedding and head are one table."""
    head = model.get_output_embeddings()
    return head is not None and head.weight is model.get_input_embeddings().weight


def needed_shapes(model: "PreTrainedModel") -> dict[str, tuple[int, ...]]:
    """Return the shape of every weight that ``from_pretrained`` would read, by name; a tied head is none of them."""
    shapes = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    if has_tied_head(model):
        del shapes[HEAD]
    return shapes


@dataclass(frozen=True)
class StoredModel:
    """A checkpoint that ``from_pretrained`` would load in full.

    Attributes:
        config: of the model.
        weights: as stored.
        shapes: of what ``from_pretrained`` reads, by name; without a head that is tied.
        tied: whether embedding and head are one table.
    """

    config: Qwen3VLConfig
    weights: StoredWeights
    shapes: Mapping[str, tuple[int, ...]]
    tied: bool

    @classmethod
    def of(cls, directory: Path, *, title: str | None = None) -> "StoredModel":
        """Read a checkpoint's headers, and a head that should equal the embedding; ``title`` names it in errors.

        Raises:
            CheckpointError: if a weight is missing or has another shape, or a head that is said to
                be tied differs from the embedding, so that transformers would load two tables.
        """
        found = cls.of_headers(directory, title=title)
        specs, read = found.weights.specs, found.weights.read
        if found.stores_tied_head and not (
            specs[HEAD] == specs[EMBEDDING] and torch.equal(read(HEAD), read(EMBEDDING))
        ):
            raise CheckpointError(
                f"{title or directory}: says tie_word_embeddings: true, but loads with two tables ({HEAD} is stored "
                "and differs from the embedding); correct its config.json"
            )
        return found

    @classmethod
    def of_headers(cls, directory: Path, *, title: str | None = None) -> "StoredModel":
        """Hold a checkpoint's headers against its configuration; no weight is read.

        transformers fills what is missing with random numbers, all of a large model if need be, leaves
        out what the model has no place for, and then only says so.

        Raises:
            CheckpointError: if a weight is missing, has another shape, is no plain number, or is one too many of a part
                that the model has.
        """
        title = title or str(directory)
        config = model_config(directory)
        weights = StoredWeights.of(directory)
        model = empty_model(config, dtype=torch.float32)
        shapes = needed_shapes(model)
        stored = weights.specs
        if missing := sorted(shapes.keys() - stored.keys()):
            raise CheckpointError(f"{title}: {len(missing)} weights are missing, e.g. {missing[0]}; copy it again")
        if other := [name for name, shape in sorted(shapes.items()) if stored[name].shape != shape]:
            raise CheckpointError(
                f"{title}: {len(other)} weights are mismatched, e.g. {other[0]} is {list(stored[other[0]].shape)}, "
                f"expected {list(shapes[other[0]])}; take config.json and weights from one checkpoint"
            )
        tied = has_tied_head(model)
        if unexpected := misplaced(stored.keys() - ({HEAD} if tied else set()), shapes.keys()):
            raise CheckpointError(
                f"{title}: {len(unexpected)} weights are unexpected, e.g. {unexpected[0]}, for which the model of "
                "config.json has no place; take config.json and weights from one checkpoint"
            )
        return cls(config, weights, shapes, tied)

    @property
    def unused(self) -> tuple[str, ...]:
        """Tensors of parts that the model does not have, such as ``mtp``; a stored tied head is none of them."""
        return tuple(sorted(self.weights.specs.keys() - self.shapes.keys() - ({HEAD} if self.tied else set())))

    @property
    def stores_tied_head(self) -> bool:
        """Whether the files hold a head although it is tied to the embedding."""
        return self.tied and HEAD in self.weights.specs


def misplaced(stored: Iterable[str], needed: Iterable[str]) -> list[str]:
    """Return the stored tensors without a place in a model that has the part they are of: it is not theirs."""
    known = set(needed)
    parts = {_part_of(name) for name in known}
    return sorted(name for name in stored if name not in known and _part_of(name) in parts)


def _part_of(name: str) -> str:
    return ".".join(name.split(".")[:2])
