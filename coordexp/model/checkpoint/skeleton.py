"""A model with the shapes of its weights and none of their data, to be run by ``streaming``."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from accelerate import init_empty_weights
from peft import PeftConfig, PeftModel, get_peft_model, set_peft_model_state_dict
from safetensors.torch import load_file
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForImageTextToText, PreTrainedModel, PreTrainedTokenizerBase

from coordexp.coord_tokens.offset_adapter import install_coord_offset_adapter
from coordexp.coord_tokens.vocab import coord_vocab
from coordexp.errors import CheckpointError, CoordExpError
from coordexp.model.checkpoint.checkpoint_io import ADAPTER_WEIGHTS, AdapterInfo, check_adapter_keys, first_line
from coordexp.model.checkpoint.weight_files import StoredWeights
from coordexp.model.quiet import quiet

EMBEDDING = "model.language_model.embed_tokens.weight"
HEAD = "lm_head.weight"

# What transformers and torch raise for a configuration that makes no sense.
_CONFIG_ERRORS = (OSError, ValueError, KeyError, TypeError, RuntimeError, ImportError, AttributeError, AssertionError)


@dataclass(frozen=True)
class Skeleton:
    """The model that transformers would make of a directory, before its weights are read.

    Attributes:
        model: plain transformers; its parameters have shape and dtype but hold no data.
        weights: where their data lie.
        shapes: of what ``from_pretrained`` would read, by name; without a head that is tied.
        names: name in the files of each parameter; under PEFT it stays the same object.
        tied: whether embedding and head are one table.
        dtype: in which it computes.
    """

    model: PreTrainedModel
    weights: StoredWeights
    shapes: Mapping[str, tuple[int, ...]]
    names: Mapping[nn.Parameter, str]
    tied: bool
    dtype: torch.dtype

    @classmethod
    def of(cls, directory: Path, *, dtype: torch.dtype = torch.float32, title: str | None = None) -> "Skeleton":
        """Build it, and check the files' headers against it as ``from_pretrained`` would.

        Args:
            directory: a checkpoint of any class that ``AutoModelForImageTextToText`` knows.
            dtype: in which the model will compute.
            title: what to call the checkpoint in an error; None for its directory.

        Raises:
            CheckpointError: if a weight is missing or has another shape, or a head that is said to
                be tied differs from the embedding.
        """
        model = _without_data(directory, dtype=dtype)
        tied = _is_tied(model)
        names = {parameter: name for name, parameter in model.named_parameters()}
        skeleton = cls(model, StoredWeights.of(directory), _shapes_of(model), names, tied, dtype)
        check_headers(skeleton.weights, skeleton.shapes, title or str(directory))
        if tied and HEAD in skeleton.weights.specs and not _same_data(skeleton.weights, EMBEDDING, HEAD):
            raise CheckpointError(
                f"{title or directory}: says tie_word_embeddings: true, but loads with two tables ({HEAD} is stored "
                "and differs from the embedding); correct its config.json"
            )
        return skeleton

    @property
    def unused(self) -> tuple[str, ...]:
        """Tensors of the files that the model has no place for; a stored tied head is none of them."""
        return tuple(sorted(self.weights.specs.keys() - self.shapes.keys() - ({HEAD} if self.tied else set())))


def check_weights(directory: Path) -> None:
    """Check that a checkpoint's files hold what its configuration says, by their headers alone.

    transformers fills what is missing with random numbers, all of a large model if need be, and
    then only says so.

    Raises:
        CheckpointError: if a weight is missing, has another shape, or is no plain number.
    """
    check_headers(
        StoredWeights.of(directory), _shapes_of(_without_data(directory, dtype=torch.float32)), str(directory)
    )


def check_headers(weights: StoredWeights, shapes: Mapping[str, tuple[int, ...]], title: str) -> None:
    """Compare stored shapes with those of a model.

    Raises:
        CheckpointError: if a weight is missing or has another shape.
    """
    stored = weights.specs
    if missing := sorted(shapes.keys() - stored.keys()):
        raise CheckpointError(f"{title}: {len(missing)} weights are missing, e.g. {missing[0]}")
    other = [name for name, shape in sorted(shapes.items()) if stored[name].shape != shape]
    if other:
        raise CheckpointError(
            f"{title}: {len(other)} weights are mismatched, e.g. {other[0]} is {list(stored[other[0]].shape)}, "
            f"expected {list(shapes[other[0]])}"
        )


def attach_adapter(skeleton: Skeleton, info: AdapterInfo, tokenizer: PreTrainedTokenizerBase) -> PeftModel:
    """Put a saved adapter, with its data, on a skeleton; the coord offsets with their hooks.

    Args:
        skeleton: of the adapter's base, not yet streamed.
        info: a LoRA or DoRA adapter, with coord offsets, trainable tokens, or neither.
        tokenizer: of the base; the offsets' ids must be its coord tokens.

    Raises:
        CheckpointError: if the adapter is for another model.
        TokenizerError: if it is for another vocabulary.
    """
    if info.offset is not None:
        install_coord_offset_adapter(
            skeleton.model,
            coord_ids=info.offset.coord_ids or coord_vocab(tokenizer).coord_ids,
            tie_head=info.offset.tie_head,
            tokenizer=tokenizer,
        )
    try:
        with quiet():
            config = PeftConfig.from_pretrained(str(info.directory))
            config.inference_mode = True
            config.base_model_name_or_path = None  # get_peft_model fills it in, and warns where another stood
            wrapped = get_peft_model(skeleton.model, config, low_cpu_mem_usage=True)
            tensors = {name: _as(skeleton.dtype, one) for name, one in load_file(_weights_of(info)).items()}
            set_peft_model_state_dict(wrapped, tensors, low_cpu_mem_usage=True)
    except CoordExpError:
        raise
    except (RuntimeError, ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"{info.directory}: the adapter does not fit the base ({first_line(error)})") from None
    check_adapter_keys(info, wrapped)
    return wrapped.eval()


def _without_data(directory: Path, *, dtype: torch.dtype) -> PreTrainedModel:
    try:
        config = AutoConfig.from_pretrained(directory, local_files_only=True, trust_remote_code=False)
        # Buffers are tables that the model computes when it is made, such as those of the rotary embedding: they stay.
        with quiet(), init_empty_weights(include_buffers=False):
            model = AutoModelForImageTextToText.from_config(config, dtype=dtype)
    except _CONFIG_ERRORS as error:
        raise CheckpointError(f"{directory}: no model can be made of it ({first_line(error)})") from None
    assert isinstance(model, PreTrainedModel)
    # PEFT moves an adapter to its layer's device, and on ``meta`` would lose it: one zero, seen in every place.
    for module in model.modules():
        for name, parameter in module.named_parameters(recurse=False):
            zero = torch.zeros((), dtype=parameter.dtype).expand(parameter.shape)
            setattr(module, name, nn.Parameter(zero, requires_grad=False))
    model.tie_weights()
    return model.eval()


def _is_tied(model: PreTrainedModel) -> bool:
    head = model.get_output_embeddings()
    return head is not None and head.weight is model.get_input_embeddings().weight


def _shapes_of(model: PreTrainedModel) -> dict[str, tuple[int, ...]]:
    state = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    if _is_tied(model):
        del state[HEAD]
    return state


def _same_data(weights: StoredWeights, one: str, other: str) -> bool:
    if weights.specs[one] != weights.specs[other]:
        return False
    pairs = zip(weights.pieces(one), weights.pieces(other), strict=True)
    return all(torch.equal(a, b) for (_, a), (_, b) in pairs)


def _weights_of(info: AdapterInfo) -> Path:
    return info.directory / ADAPTER_WEIGHTS


def _as(dtype: torch.dtype, tensor: Tensor) -> Tensor:
    return tensor.to(dtype) if tensor.is_floating_point() else tensor
