"""A checkpoint's model: its sizes, its weights by name, and whether the files hold all of them."""

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
_PREDICTS_MORE = "mtp"  # in released files, the part that proposes several tokens at a time (speculative decoding)


@dataclass(frozen=True)
class TextSizes:
    """Sizes of the language model, named as in its configuration. ``vocab_size`` counts the rows of the embedding."""

    vocab_size: int
    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int | None = None
    head_dim: int | None = None
    intermediate_size: int = 0


@dataclass(frozen=True)
class VisionSizes:
    """Sizes of the vision tower, named as in its configuration."""

    depth: int
    hidden_size: int
    intermediate_size: int
    num_heads: int
    patch_size: int
    temporal_patch_size: int
    spatial_merge_size: int
    in_channels: int = 3


_TEXT = TypeAdapter(TextSizes)
_VISION = TypeAdapter(VisionSizes)


@dataclass(frozen=True)
class Dimensions:
    """The sizes of a model that memory and arithmetic depend on."""

    text: TextSizes
    vision: VisionSizes

    @classmethod
    def of(cls, config: PreTrainedConfig) -> "Dimensions":
        """Read the sizes from a model's configuration."""
        sections = config.to_dict()
        text = _TEXT.validate_python(sections["text_config"])
        vision = _VISION.validate_python(sections["vision_config"])
        return cls(text, vision)

    @property
    def query_width(self) -> int:
        return self.text.num_attention_heads * self._head_size

    @property
    def key_width(self) -> int:
        """How many numbers the keys of one token have. The values have as many."""
        return (self.text.num_key_value_heads or self.text.num_attention_heads) * self._head_size

    @property
    def _head_size(self) -> int:
        return self.text.head_dim or self.text.hidden_size // self.text.num_attention_heads


@contextlib.contextmanager
def quiet() -> Generator[None]:
    """Silence progress bars, tables and deprecations of libraries inside the block. Errors and our messages pass."""
    had_progress_bar = logging.is_progress_bar_enabled()
    verbosity = logging.get_verbosity()
    logging.disable_progress_bar()
    logging.set_verbosity_error()  # we report weights that do not fit ourselves, in one sentence
    try:
        with warnings.catch_warnings(), _deepspeed_without_search():
            # PEFT 0.21 asks transformers 5.23 by the name that transformers 6 will drop.
            warnings.filterwarnings("ignore", message="`is_gradient_checkpointing`", category=FutureWarning)
            yield
    finally:
        logging.set_verbosity(verbosity)
        if had_progress_bar:
            logging.enable_progress_bar()


@contextlib.contextmanager
def _deepspeed_without_search() -> Generator[None]:
    """Keep DeepSpeed from warning that it found no GPU. transformers imports it when it saves a model.

    The variable is removed again, because a process that is started later may have a GPU.
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
    """Return the model of a configuration in evaluation mode, with parameters on the meta device and real buffers.

    Raises:
        CheckpointError: if no model can be made of the configuration.
    """
    # Imported here because they take two seconds, and a dry run makes no model.
    from accelerate import init_empty_weights
    from transformers import AutoModelForImageTextToText, PreTrainedModel
    from transformers.initialization import no_init_weights

    file = Path(config.name_or_path or "") / CONFIG_FILE  # transformers notes the directory that it was read from
    text = config.get_text_config()
    if (text.pad_token_id or 0) >= text.vocab_size:
        raise CheckpointError(
            f"{file}: vocab_size is {text.vocab_size} and pad_token_id {text.pad_token_id}, so one of them is of "
            "another vocabulary; take configuration, weights and tokenizer from one checkpoint"
        )
    # Parameters on the meta device need no initial values; drawing them would take five sixths of the time.
    on_meta_device = init_empty_weights(include_buffers=False)
    with library_errors(f"{file}: no model can be made of it"), quiet(), no_init_weights(), on_meta_device:
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
    """Return the shape of every weight that ``from_pretrained`` reads, by name. A tied head is not listed."""
    shapes = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    if has_tied_head(model):
        del shapes[HEAD]
    return shapes


@dataclass(frozen=True)
class StoredModel:
    """A checkpoint that ``from_pretrained`` would load in full.

    Attributes:
        config: its configuration, as transformers reads it.
        weights: as stored, by the names that they have in the model.
        shapes: shape of every weight that ``from_pretrained`` reads, by name. A tied head is not listed.
        tied: whether embedding and head are one table.
        unused: names of tensors of parts that the model does not have, such as ``mtp``. A stored tied head is not
            among them.
        renamed: for a person, how the names in the files differ from those under which this family is saved; "" if they
            do not. A plain copy of the files would keep the other names.
    """

    config: PreTrainedConfig
    weights: StoredWeights
    shapes: Mapping[str, tuple[int, ...]]
    tied: bool
    unused: tuple[str, ...] = ()
    renamed: str = ""

    @classmethod
    def of(cls, directory: Path, *, title: str | None = None) -> "StoredModel":
        """Read the headers of a checkpoint, and compare a tied head that is stored with the embedding.

        Args:
            directory: folder of the checkpoint.
            title: its name in errors; None for the directory.

        Raises:
            CheckpointError: if the files do not hold the model; or if a head that is said to be tied differs from the
                embedding, because transformers would then load two tables.
        """
        stored_model = cls.of_headers(directory, title=title)
        weights = stored_model.weights
        if stored_model.stores_tied_head:
            have_one_spec = weights.specs[HEAD] == weights.specs[EMBEDDING]
            if not have_one_spec or not torch.equal(weights.read(HEAD), weights.read(EMBEDDING)):
                raise CheckpointError(
                    f"{title or directory}: says tie_word_embeddings: true, but loads with two tables ({HEAD} is "
                    "stored and differs from the embedding); correct its config.json"
                )
        return stored_model

    @classmethod
    def of_headers(cls, directory: Path, *, title: str | None = None) -> "StoredModel":
        """Compare the headers of a checkpoint with its configuration. No weight is read.

        transformers would fill missing weights with random numbers (those of a whole large model, if none fits), skip
        weights without a place in the model, and only warn.

        Args:
            directory: folder of the checkpoint.
            title: its name in errors; None for the directory.

        Raises:
            CheckpointError: if the files do not hold the model of the configuration.
        """
        title = title or str(directory)
        config = model_config(directory)
        weights = StoredWeights.of(directory)
        check_gathered(title, weights.specs)
        if family_of(config.model_type, where=directory).on_disk == "converted":
            return cls._of_converted(config, directory, title)
        model = empty_model(config, dtype=torch.float32)
        shapes = needed_shapes(model)
        tied = has_tied_head(model)
        specs = weights.specs
        unknown = specs.keys() - shapes.keys()
        if tied:
            unknown -= {HEAD}
        missing = sorted(shapes.keys() - specs.keys())
        if missing and unknown:
            # The same weights may have other names, which transformers knows or can be told.
            converted = cls._of_converted(config, directory, title)
            return replace(converted, renamed=converted.renamed or _mapped(unknown, specs))
        mismatched = [
            f"{name} is {list(specs[name].shape)}, expected {list(shape)}"
            for name, shape in sorted(shapes.items())
            if name in specs and specs[name].shape != shape
        ]
        _check_fit(
            title,
            stored=specs.keys(),
            missing=missing,
            mismatched=mismatched,
            unexpected=_misplaced(unknown, shapes),
        )
        return cls(config, weights, shapes, tied, tuple(sorted(unknown)))

    @classmethod
    def _of_converted(cls, config: PreTrainedConfig, directory: Path, title: str) -> "StoredModel":
        """Read a checkpoint whose names or shapes transformers converts, by a dry run on the meta device."""
        model, unused = load_stock(directory, dtype="auto", device_map="meta", title=title)
        specs = {name: TensorSpec(tuple(tensor.shape), tensor.dtype) for name, tensor in model.state_dict().items()}
        files = {file.name: file for file in weight_files(directory)}
        # The whole model is loaded once, when the first tensor is read.
        load = functools.cache(lambda: load_stock(directory, dtype="auto")[0].state_dict())
        weights = StoredWeights(directory, specs, files, load=load)
        names = stored_names(directory)
        not_reported = {name for name in names if name.startswith(f"{_PREDICTS_MORE}.")}  # by transformers, as unused
        wrapper = wrapper_of(names)
        renamed = ""
        if wrapper:
            renamed = f"{wrapper!r} before each of {len(names):,} names in the files is left out"
        unused_names = tuple(sorted(unused | not_reported))
        return cls(config, weights, needed_shapes(model), has_tied_head(model), unused_names, renamed)

    @property
    def left_behind(self) -> str:
        """For a person, what a copy of this checkpoint will lack; "" if that is nothing."""
        if not self.unused:
            return ""
        modules = sorted({name.partition(".")[0] for name in self.unused})
        consequence = " (with it goes speculative decoding)" if _PREDICTS_MORE in modules else ""
        return f"{len(self.unused):,} of the base's tensors, unknown to its model: {', '.join(modules)}{consequence}"

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
    """Load a checkpoint's model with transformers, as a user without coordexp would.

    Args:
        directory: folder of the checkpoint.
        dtype: dtype of the loaded weights; ``auto`` for the one in the files.
        device_map: ``meta`` for a dry run that reads no weights; None for the CPU.
        attn_implementation: kind of attention.
        title: its name in errors; None for the directory.

    Returns:
        The model, and the names of stored tensors of parts that it does not have.

    Raises:
        CheckpointError: if the files do not hold the model of the configuration.
    """
    from transformers import AutoModelForImageTextToText  # here, because it takes two seconds

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
                ignore_mismatched_sizes=device_map == "meta",  # a dry run reports them below instead of raising
                key_mapping={f"^{re.escape(wrapper)}": ""} if wrapper else None,
                local_files_only=True,
                trust_remote_code=False,
                output_loading_info=True,
            ),
        )
    # transformers has filled missing weights with random numbers and skipped unknown ones by now.
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
    """Raise a CheckpointError unless the stored weights are those of the model.

    Args:
        title: name of the checkpoint.
        stored: names in its files.
        missing: names that the model has and the files have not.
        mismatched: descriptions of weights in another shape.
        unexpected: stored names in a part that the model has, without a place there.
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
    """Return the stored names that have no place in the model, although the model has the part that they name.

    A whole part that the model lacks (``mtp``) may stay unused. But with a layer too many in a part that it has, the
    files are those of another model.
    """
    needed_names = set(needed)
    needed_parts = {_model_part(name) for name in needed_names}
    return sorted(name for name in stored if name not in needed_names and _model_part(name) in needed_parts)


def _model_part(name: str) -> str:
    return ".".join(name.split(".")[:2])


def _mapped(unknown: Collection[str], stored: Collection[str]) -> str:
    return (
        f"{len(unknown):,} of {len(stored):,} names in the files are not the model's own, e.g. {min(unknown)}; "
        "transformers maps them"
    )
