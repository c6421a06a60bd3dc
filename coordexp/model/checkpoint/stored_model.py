"""The model of a checkpoint's configuration: its sizes, its weights by name, and whether the files hold them."""

import contextlib
import copy
import functools
import os
import re
import warnings
from collections.abc import Collection, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, cast

import torch
from pydantic import TypeAdapter
from transformers import PreTrainedConfig
from transformers.utils import logging

from coordexp.coord_tokens.dtypes import DTypeName
from coordexp.errors import CheckpointError
from coordexp.model.checkpoint.directory import CONFIG_FILE, library_errors, model_config, weight_files
from coordexp.model.checkpoint.names import check_gathered, other_names_sentence, stored_names, wrapper_of
from coordexp.model.checkpoint.weights import StoredWeights, TensorSpec
from coordexp.model.families import family_of

if TYPE_CHECKING:
    from transformers import PreTrainedModel

EMBEDDING = "model.language_model.embed_tokens.weight"
HEAD = "lm_head.weight"
_DEEPSPEED_DEVICE = "DS_ACCELERATOR"
_PREDICTS_MORE = "mtp"  # the part of released files that proposes several tokens at a time


@dataclass(frozen=True)
class TextSizes:
    """Of the language model, by the names of its configuration; ``vocab_size`` is that of the expanded vocabulary."""

    vocab_size: int
    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int | None = None
    head_dim: int | None = None
    intermediate_size: int = 0


@dataclass(frozen=True)
class VisionSizes:
    """Of the vision tower, by the names of its configuration."""

    depth: int
    hidden_size: int
    intermediate_size: int
    num_heads: int
    patch_size: int
    temporal_patch_size: int
    spatial_merge_size: int
    in_channels: int = 3


_TEXT, _VISION = TypeAdapter(TextSizes), TypeAdapter(VisionSizes)


@dataclass(frozen=True)
class Dimensions:
    """The sizes of a model that memory and arithmetic depend on."""

    text: TextSizes
    vision: VisionSizes

    @classmethod
    def of(cls, config: PreTrainedConfig) -> "Dimensions":
        sections = config.to_dict()
        return cls(_TEXT.validate_python(sections["text_config"]), _VISION.validate_python(sections["vision_config"]))

    @property
    def query_width(self) -> int:
        return self.text.num_attention_heads * self._head_size

    @property
    def key_width(self) -> int:
        """Numbers that the keys of a token take; its values take as many again."""
        return (self.text.num_key_value_heads or self.text.num_attention_heads) * self._head_size

    @property
    def _head_size(self) -> int:
        return self.text.head_dim or self.text.hidden_size // self.text.num_attention_heads


@contextlib.contextmanager
def quiet() -> Generator[None]:
    """Load or wrap a model without third-party bars, tables and deprecations; errors and our own messages pass."""
    drawn, verbosity = logging.is_progress_bar_enabled(), logging.get_verbosity()
    logging.disable_progress_bar()
    logging.set_verbosity_error()  # weights that do not fit are our own errors, in one sentence
    try:
        with warnings.catch_warnings(), _deepspeed_without_search():
            # PEFT 0.21 asks transformers 5.23 by the name that transformers 6 will drop.
            warnings.filterwarnings("ignore", message="`is_gradient_checkpointing`", category=FutureWarning)
            yield
    finally:
        logging.set_verbosity(verbosity)
        if drawn:
            logging.enable_progress_bar()


@contextlib.contextmanager
def _deepspeed_without_search() -> Generator[None]:
    """Spare a machine without a GPU DeepSpeed's warning that it found none; transformers imports it to save a model.

    The variable is taken back, because processes that are started later may have a GPU.
    """
    is_needed = _DEEPSPEED_DEVICE not in os.environ and not torch.cuda.is_available()
    if is_needed:
        os.environ[_DEEPSPEED_DEVICE] = "cpu"
    try:
        yield
    finally:
        if is_needed:
            os.environ.pop(_DEEPSPEED_DEVICE, None)


def empty_model(config: PreTrainedConfig, *, dtype: torch.dtype) -> "PreTrainedModel":
    """Return the model of a configuration in evaluation mode, its parameters on the meta device, its buffers real."""
    # Here: they take two seconds, and a dry run makes no model.
    from accelerate import init_empty_weights
    from transformers import AutoModelForImageTextToText, PreTrainedModel
    from transformers.initialization import no_init_weights

    # Parameters on the meta device need no initial values; drawing them takes five sixths of the time.
    empty = init_empty_weights(include_buffers=False)
    file = Path(config.name_or_path or "") / CONFIG_FILE  # transformers notes the directory that it was read from
    text = config.get_text_config()
    if (text.pad_token_id or 0) >= text.vocab_size:
        raise CheckpointError(
            f"{file}: vocab_size is {text.vocab_size} and pad_token_id {text.pad_token_id}, so one of them is of "
            "another vocabulary; take configuration, weights and tokenizer from one checkpoint"
        )
    with library_errors(f"{file}: no model can be made of it"), quiet(), no_init_weights(), empty:
        # A copy, because making a model writes its dtype into the configuration.
        model = AutoModelForImageTextToText.from_config(copy.deepcopy(config), dtype=dtype)
    assert isinstance(model, PreTrainedModel)
    model.tie_weights()
    return model.eval()


def has_tied_head(model: "PreTrainedModel") -> bool:
    head = model.get_output_embeddings()
    return head is not None and head.weight is model.get_input_embeddings().weight


def needed_shapes(model: "PreTrainedModel") -> dict[str, tuple[int, ...]]:
    """Return the shape of every weight that ``from_pretrained`` would read, by name; a tied head is not listed."""
    shapes = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    if has_tied_head(model):
        del shapes[HEAD]
    return shapes


@dataclass(frozen=True)
class StoredModel:
    """A checkpoint that ``from_pretrained`` would load in full.

    Attributes:
        weights: as stored, by the names that they have in the model.
        shapes: of what ``from_pretrained`` reads, by name; without a head that is tied.
        tied: whether embedding and head are one table.
        unused: tensors of parts that the model does not have, such as ``mtp``; a stored tied head does not count.
        renamed: in which way the files' names are not those in which this family is saved, for a person; "" where they
            are. A copy of the files as they are would keep them.
    """

    config: PreTrainedConfig
    weights: StoredWeights
    shapes: Mapping[str, tuple[int, ...]]
    tied: bool
    unused: tuple[str, ...] = ()
    renamed: str = ""

    @classmethod
    def of(cls, directory: Path, *, title: str | None = None) -> "StoredModel":
        """Read a checkpoint's headers, and a head that should equal the embedding; ``title`` names it in errors.

        Where a head that is said to be tied differs from it, transformers would load two tables.
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
        """
        title = title or str(directory)
        config = model_config(directory)
        weights = StoredWeights.of(directory)
        check_gathered(title, weights.specs)
        if family_of(config.model_type, where=directory).on_disk == "converted":
            return cls._of_converted(config, directory, title)
        model = empty_model(config, dtype=torch.float32)
        shapes, tied = needed_shapes(model), has_tied_head(model)
        stored = weights.specs
        others = stored.keys() - shapes.keys() - ({HEAD} if tied else set())
        missing = sorted(shapes.keys() - stored.keys())
        if missing and others:
            # The same weights may have other names, which transformers knows or can be told.
            converted = cls._of_converted(config, directory, title)
            return replace(converted, renamed=converted.renamed or _mapped(others, stored))
        _check_fit(
            title,
            stored=stored.keys(),
            missing=missing,
            mismatched=[
                f"{name} is {list(stored[name].shape)}, expected {list(shape)}"
                for name, shape in sorted(shapes.items())
                if name in stored and stored[name].shape != shape
            ],
            unexpected=_misplaced(others, shapes),
        )
        return cls(config, weights, shapes, tied, tuple(sorted(others)))

    @classmethod
    def _of_converted(cls, config: PreTrainedConfig, directory: Path, title: str) -> "StoredModel":
        """As transformers sees files whose names or shapes it converts: a dry run on the meta device."""
        model, unused = load_stock(directory, dtype="auto", device_map="meta", title=title)
        specs = {name: TensorSpec(tuple(one.shape), one.dtype) for name, one in model.state_dict().items()}
        files = weight_files(directory)
        # Loaded once, when the first tensor is read.
        load = functools.cache(lambda: load_stock(directory, dtype="auto")[0].state_dict())
        weights = StoredWeights(directory, specs, {file.name: file for file in files}, load=load)
        names = stored_names(directory)
        # Of these transformers says nothing.
        silent = {name for name in names if name.startswith(f"{_PREDICTS_MORE}.")}
        wrapper = wrapper_of(names)
        renamed = f"{wrapper!r} before each of {len(names):,} names in the files is left out" if wrapper else ""
        unused_names = tuple(sorted(unused | silent))
        return cls(config, weights, needed_shapes(model), has_tied_head(model), unused_names, renamed)

    @property
    def left_behind(self) -> str:
        """What no copy of it will have, for a person; empty where that is nothing."""
        if not self.unused:
            return ""
        parts = sorted({name.partition(".")[0] for name in self.unused})
        gone = " (with it goes speculative decoding)" if _PREDICTS_MORE in parts else ""
        return f"{len(self.unused):,} of the base's tensors, unknown to its model: {', '.join(parts)}{gone}"

    @property
    def stores_tied_head(self) -> bool:
        """Whether the files hold a head although it is tied to the embedding."""
        return self.tied and self.weights.load is None and HEAD in self.weights.specs


def load_stock(
    directory: Path,
    *,
    dtype: DTypeName,
    device_map: str | None = None,
    attn_implementation: str = "sdpa",
    title: str | None = None,
) -> "tuple[PreTrainedModel, set[str]]":
    """Load a checkpoint's model with transformers, as anybody would, and name the tensors of parts it does not have."""
    from transformers import AutoModelForImageTextToText  # here: it takes two seconds

    names = stored_names(directory)
    wrapper = wrapper_of(names)
    with library_errors(f"{directory}: the model does not load"), quiet():
        model, report = cast(
            "tuple[PreTrainedModel, dict[str, set[str]]]",
            AutoModelForImageTextToText.from_pretrained(
                directory,
                dtype=dtype,
                device_map=device_map,
                attn_implementation=attn_implementation,
                use_safetensors=True,
                ignore_mismatched_sizes=device_map == "meta",  # a dry run lists them, in our own words
                key_mapping={f"^{re.escape(wrapper)}": ""} if wrapper else None,
                local_files_only=True,
                trust_remote_code=False,
                output_loading_info=True,
            ),
        )
    # transformers fills what is missing with random numbers, leaves out what it does not know, and goes on.
    _check_fit(
        title or str(directory),
        stored=names,
        missing=sorted(report["missing_keys"]),
        mismatched=sorted(map(str, report["mismatched_keys"])),
        unexpected=_misplaced(report["unexpected_keys"], model.state_dict()),
        unknown=sorted(report["unexpected_keys"]),
    )
    return model, report["unexpected_keys"]


def _check_fit(
    title: str,
    *,
    stored: Collection[str],
    missing: Sequence[str],
    mismatched: Sequence[str],
    unexpected: Sequence[str],
    unknown: Sequence[str] = (),
) -> None:
    """Refuse weights that are not those of the model.

    Args:
        title: names the checkpoint.
        stored: names in its files.
        missing: names that the model has and the files have not.
        mismatched: descriptions of weights in another shape.
        unexpected: stored names without a place in a part that the model has.
        unknown: all stored names that the model does not have.
    """
    if missing and unknown:
        sentence = other_names_sentence(missing=missing, unknown=unknown, stored=stored, wrapper=wrapper_of(stored))
        raise CheckpointError(f"{title}: {sentence}")
    if missing:
        raise CheckpointError(
            f"{title}: {len(missing)} weights are missing, e.g. {missing[0]}; all {len(stored)} in the files are known "
            "to the model: copy the weights again, or take config.json from the checkpoint that they are of"
        )
    if mismatched:
        raise CheckpointError(
            f"{title}: {len(mismatched)} weights are mismatched, e.g. {mismatched[0]}; take config.json and weights "
            "from one checkpoint"
        )
    if unexpected:
        raise CheckpointError(
            f"{title}: {len(unexpected)} weights are unexpected, e.g. {unexpected[0]}, for which the model of "
            "config.json has no place; take config.json and weights from one checkpoint"
        )


def _misplaced(stored: Iterable[str], needed: Iterable[str]) -> list[str]:
    """Return the stored tensors without a place in a model that has the part they are of: it is not theirs."""
    known = set(needed)
    parts = {_part_of(name) for name in known}
    return sorted(name for name in stored if name not in known and _part_of(name) in parts)


def _part_of(name: str) -> str:
    return ".".join(name.split(".")[:2])


def _mapped(others: Collection[str], stored: Collection[str]) -> str:
    return (
        f"{len(others):,} of {len(stored):,} names in the files are not the model's own, e.g. {min(others)}; "
        "transformers maps them"
    )
