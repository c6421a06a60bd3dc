"""Run a checkpoint whose weights stay on disk: each block's are read when it runs, and dropped after it.

accelerate does that for the blocks. The two tables of the vocabulary go by parts, which it cannot do:
the rows of the ids at hand for the embedding, chunks of rows for the head. In float32 a table of
151,936 x 4,096 numbers would take 2.5 GB.

Shapes: T tokens (any leading shape), D hidden, V vocabulary, U distinct ids, R rows of a chunk.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import torch
from accelerate.hooks import attach_align_device_hook
from peft import PeftConfig, PeftModel, get_peft_model, set_peft_model_state_dict
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from coordexp.coord_tokens.offset_adapter import install_coord_offset_adapter
from coordexp.coord_tokens.vocab import coord_vocab
from coordexp.model.checkpoint.adapter import AdapterInfo, check_adapter_keys
from coordexp.model.checkpoint.directory import foreign_errors
from coordexp.model.checkpoint.stored_model import EMBEDDING, HEAD, StoredModel, empty_model, quiet
from coordexp.model.checkpoint.weights import StoredWeights, TensorSpec, rows_per_piece

_CPU = torch.device("cpu")
# PEFT's wrappers use the weight inside them without calling the module that has it.
_WRAPPERS = ("Linear", "TrainableTokensWrapper")


@dataclass(frozen=True)
class OffloadedModel:
    """A model that reads its weights while it runs.

    Attributes:
        model: a plain transformers model, or a PEFT model around one.
        num_reads: how many weights a forward pass reads, at most.
    """

    model: nn.Module
    num_reads: int


def offload(
    stored: StoredModel,
    *,
    adapter: AdapterInfo | None = None,
    tokenizer: PreTrainedTokenizerBase | None = None,
    dtype: torch.dtype = torch.float32,
    device: torch.device = _CPU,
    on_read: Callable[[], None] = lambda: None,
) -> OffloadedModel:
    """Make the model of a checkpoint, with a saved adapter on it.

    Args:
        stored: the checkpoint.
        adapter: LoRA or DoRA with coord offsets, trainable tokens, or neither; it is held in memory.
        tokenizer: of the checkpoint, whose coord tokens the adapter's offsets must be for.
        dtype: in which the model computes.
        device: where it does; the adapter's coord offsets stay on the CPU.
        on_read: called whenever a weight was read.

    Raises:
        CheckpointError: if the adapter is for another model.
        TokenizerError: if it is for another vocabulary.
    """
    model = empty_model(stored.config, dtype=dtype)
    for name, buffer in model.named_buffers():
        if name in stored.shapes:
            buffer.copy_(stored.weights.read(name))
    _fill_with_zeros(model)
    model.tie_weights()
    names = {parameter: name for name, parameter in model.named_parameters()}
    layers = [layer for module in model.modules() if isinstance(module, nn.ModuleList) for layer in module]
    wrapped = model if adapter is None else _with_adapter(model, adapter, tokenizer)
    # PEFT gives a weight another name, but it stays the same object; what was not there before is the adapter's.
    sources = {
        name: names.get(parameter, parameter.detach())
        for name, parameter in model.named_parameters(remove_duplicate=False)
    }
    weights = _WeightsByName(stored.weights, sources, on_read)
    for part in ("model", "lm_head"):  # not the coord offsets beside them
        attach_align_device_hook(
            model.get_submodule(part),
            execution_device=device,
            offload=True,
            weights_map=weights,
            module_name=part,
            preload_module_classes=sorted({type(layer).__name__ for layer in layers} | set(_WRAPPERS)),
        )
    head_name = EMBEDDING if stored.tied else HEAD
    for module, forward in (
        (model.get_input_embeddings(), _embedding_forward(stored.weights, EMBEDDING, dtype, device)),
        (model.get_output_embeddings(), _head_forward(stored.weights, head_name, dtype, device)),
    ):
        if module is not None and type(module) in (nn.Embedding, nn.Linear):  # PEFT's wrappers need the whole table
            module.forward = forward
    return OffloadedModel(wrapped.eval(), sum(isinstance(source, str) for source in sources.values()))


def _fill_with_zeros(model: nn.Module) -> None:
    """Give parameters a device, to which PEFT moves an adapter: on the meta device it would lose the adapter's data."""
    for module in model.modules():
        for name, parameter in module.named_parameters(recurse=False):
            zero = torch.zeros((), dtype=parameter.dtype).expand(parameter.shape)  # one number, seen in every place
            setattr(module, name, nn.Parameter(zero, requires_grad=False))


def _with_adapter(model: PreTrainedModel, info: AdapterInfo, tokenizer: PreTrainedTokenizerBase | None) -> PeftModel:
    if info.offset is not None:
        ids = info.offset.coord_ids
        if ids is None and tokenizer is not None:
            ids = list(coord_vocab(tokenizer).coord_ids)
        install_coord_offset_adapter(model, coord_ids=ids, tie_head=info.offset.tie_head, tokenizer=tokenizer)
    tensors = {
        name: tensor.to(model.dtype) if tensor.is_floating_point() else tensor
        for name, tensor in info.tensors().items()
    }
    with foreign_errors(f"{info.directory}: the adapter does not fit the base; {info.way_on}"), quiet():
        config = PeftConfig.from_pretrained(str(info.directory))
        config.inference_mode = True
        config.base_model_name_or_path = None  # get_peft_model fills it in, and warns where another stood
        wrapped = get_peft_model(model, config, low_cpu_mem_usage=True)
        set_peft_model_state_dict(wrapped, tensors, low_cpu_mem_usage=True)
    check_adapter_keys(info, wrapped)
    return wrapped


@dataclass(frozen=True)
class _WeightsByName(Mapping[str, Tensor]):
    """What accelerate asks for by a parameter's name: from the checkpoint's files, or an adapter's from memory."""

    weights: StoredWeights
    sources: Mapping[str, str | Tensor]
    on_read: Callable[[], None]

    def __getitem__(self, name: str) -> Tensor:
        source = self.sources[name]
        if isinstance(source, Tensor):
            return source
        self.on_read()
        return self.weights.read(source)

    def __iter__(self) -> Iterator[str]:
        return iter(self.sources)

    def __len__(self) -> int:
        return len(self.sources)


def _embedding_forward(
    weights: StoredWeights, name: str, dtype: torch.dtype, device: torch.device
) -> Callable[[Tensor], Tensor]:
    def forward(input: Tensor) -> Tensor:
        ids_U, place_T = input.unique(return_inverse=True)
        return F.embedding(place_T, weights.listed_rows(name, ids_U.tolist()).to(device=device, dtype=dtype))

    return forward


def _head_forward(
    weights: StoredWeights, name: str, dtype: torch.dtype, device: torch.device
) -> Callable[[Tensor], Tensor]:
    num_rows, hidden_size = weights.specs[name].shape
    step = rows_per_piece(TensorSpec((num_rows, hidden_size), torch.float32))

    def forward(input: Tensor) -> Tensor:
        logits_TV = input.new_empty(*input.shape[:-1], num_rows)
        for start in range(0, num_rows, step):
            rows_RD = weights.rows(name, start, min(start + step, num_rows)).to(device=device, dtype=dtype)
            logits_TV[..., start : start + len(rows_RD)] = F.linear(input, rows_RD)
        return logits_TV

    return forward
