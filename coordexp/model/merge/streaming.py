"""Run a model whose weights stay on disk: each block's are read when it runs and dropped after it.

A block is an element of a list of layers, or whatever stands outside such lists. The two tables of
the vocabulary go by parts: the rows of the ids at hand for the embedding, chunks of rows for the
head. Hooks, and adapters inside a block, act as they do on a model that is loaded.

Shapes: T tokens (any leading shape), D hidden, V vocabulary, U distinct ids, R rows of a chunk.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from coordexp.model.checkpoint.skeleton import Skeleton
from coordexp.model.checkpoint.weight_files import TensorSpec, rows_per_piece


def stream(
    skeleton: Skeleton, *, device: torch.device | None = None, on_block: Callable[[], None] | None = None
) -> int:
    """Arrange that the skeleton's model reads its weights as it runs, from now on.

    Args:
        skeleton: as made, or with an adapter attached.
        device: where it computes; None for the CPU, where an attached adapter is.
        on_block: called whenever a block was run.

    Returns:
        How many blocks there are.
    """
    streamer = _Streamer(skeleton, device or torch.device("cpu"), on_block or _nothing)
    _place_buffers(skeleton, streamer.device)
    embedding, head = skeleton.model.get_input_embeddings(), skeleton.model.get_output_embeddings()
    num_blocks = 0
    for block in _blocks(skeleton.model):
        slots = [slot for module in block.modules() for slot in _slots_of(module, skeleton)]
        if not slots:
            continue  # an adapter that has its data, an activation
        num_blocks += 1
        # PEFT may have put a wrapper there that needs its whole table: then it is a block like any other.
        is_table = type(block) in (nn.Embedding, nn.Linear) and len(slots) == 1
        if is_table and block is embedding:
            block.forward = streamer.embedding_forward(slots[0].name)
        elif is_table and block is head:
            block.forward = streamer.head_forward(slots[0].name)
        else:
            block.register_forward_pre_hook(_Load(streamer, slots))
        block.register_forward_hook(_Drop(streamer, slots))
        _empty(slots)
    return num_blocks


@dataclass(frozen=True)
class _Slot:
    """Where a weight goes while its block runs, and what stands there otherwise."""

    owner: nn.Module
    attribute: str
    name: str
    placeholder: nn.Parameter


@dataclass(frozen=True)
class _Streamer:
    skeleton: Skeleton
    device: torch.device
    on_block: Callable[[], None]

    def read(self, name: str) -> Tensor:
        return self.placed(self.skeleton.weights.read(name))

    def placed(self, tensor: Tensor) -> Tensor:
        return tensor.to(device=self.device, dtype=self.skeleton.dtype)

    def embedding_forward(self, name: str) -> Callable[[Tensor], Tensor]:
        def forward(input: Tensor) -> Tensor:
            ids_U, place_T = input.unique(return_inverse=True)
            rows_UD = self.placed(self.skeleton.weights.listed_rows(name, ids_U.tolist()))
            return F.embedding(place_T, rows_UD)

        return forward

    def head_forward(self, name: str) -> Callable[[Tensor], Tensor]:
        weights = self.skeleton.weights
        num_rows, hidden_size = weights.specs[name].shape
        step = rows_per_piece(TensorSpec((num_rows, hidden_size), torch.float32))

        def forward(input: Tensor) -> Tensor:
            logits_TV = input.new_empty(*input.shape[:-1], num_rows)
            for start in range(0, num_rows, step):
                rows_RD = self.placed(weights.rows(name, start, min(start + step, num_rows)))
                logits_TV[..., start : start + len(rows_RD)] = F.linear(input, rows_RD)
            return logits_TV

        return forward


@dataclass(frozen=True, eq=False)
class _Load:
    streamer: _Streamer
    slots: list[_Slot]

    def __call__(self, module: nn.Module, args: tuple[object, ...]) -> None:
        for slot in self.slots:
            weight = nn.Parameter(self.streamer.read(slot.name), requires_grad=False)
            setattr(slot.owner, slot.attribute, weight)


@dataclass(frozen=True, eq=False)
class _Drop:
    streamer: _Streamer
    slots: list[_Slot]

    def __call__(self, module: nn.Module, args: tuple[object, ...], output: object) -> None:
        _empty(self.slots)
        self.streamer.on_block()


def _empty(slots: list[_Slot]) -> None:
    for slot in slots:
        setattr(slot.owner, slot.attribute, slot.placeholder)


def _blocks(module: nn.Module) -> Iterator[nn.Module]:
    if isinstance(module, nn.ModuleList):
        yield from module
    elif any(isinstance(part, nn.ModuleList) for part in module.modules()):
        assert not list(module.parameters(recurse=False))  # they would belong to no block
        for child in module.children():
            yield from _blocks(child)
    else:
        yield module


def _slots_of(module: nn.Module, skeleton: Skeleton) -> Iterator[_Slot]:
    for attribute, parameter in module.named_parameters(recurse=False):
        name = skeleton.names.get(parameter)
        if name is not None:
            yield _Slot(module, attribute, name, nn.Parameter(parameter.to("meta"), requires_grad=False))


def _place_buffers(skeleton: Skeleton, device: torch.device) -> None:
    for name, buffer in skeleton.model.named_buffers():
        if name in skeleton.shapes:
            buffer.copy_(skeleton.weights.read(name))
    for module in skeleton.model.modules():
        for attribute, buffer in module.named_buffers(recurse=False):
            setattr(module, attribute, buffer.to(device))


def _nothing() -> None:
    """Do nothing."""
