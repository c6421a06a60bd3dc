"""How a model finds its coord-offset adapter: forward hooks that look it up when they run.

A hook must not hold the adapter: PEFT copies it, and the copy is what trains. It holds the model.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self, cast

from peft import LoraConfig, PeftConfig
from peft.tuners.tuners_utils import BaseTunerLayer
from peft.utils import ModulesToSaveWrapper
from peft.utils.other import TrainableTokensWrapper
from torch import Tensor, nn
from transformers import PreTrainedModel

from coordexp.coord_tokens.offset.module import CoordOffsetAdapter, check_tables
from coordexp.errors import ConfigError

ADAPTER_NAME = "coord_offset_adapter"
GUARD_NAME = "coord_offsets_need_coordexp_model_load"


def active_offset(model: nn.Module) -> CoordOffsetAdapter | None:
    """Return the adapter that acts, and trains, now: PEFT's active copy, seen through any wrapper.

    None without an adapter. Under ``disable_adapter()``, and while an adapter without offsets is active, it is the one
    of the base model, at zero. A ConfigError if PEFT activated an adapter's layers but not its offsets.
    """
    owner = inner_model(model)
    module = adapter_slot(owner)
    if isinstance(module, ModulesToSaveWrapper):
        module = _active_copy(owner, module)
    if module is None or isinstance(module, CoordOffsetAdapter):
        return module
    raise TypeError(f"{ADAPTER_NAME} is a {type(module).__name__}, expected a CoordOffsetAdapter")


def inner_model(model: nn.Module) -> PreTrainedModel:
    """Return the Hugging Face model inside PEFT, DDP, DeepSpeed or ``torch.compile`` wrappers."""
    for module in model.modules():
        if isinstance(module, PreTrainedModel):
            return module
    raise TypeError(f"{type(model).__name__} holds no Hugging Face model")


def adapter_slot(owner: PreTrainedModel) -> nn.Module | None:
    """Return what sits under the adapter's name: the adapter, PEFT's wrapper around it, or nothing."""
    return dict(owner.named_children()).get(ADAPTER_NAME)


def embedding_and_head(model: PreTrainedModel) -> tuple[nn.Module, nn.Module]:
    """Return the modules that the offsets act on."""
    head = model.get_output_embeddings()
    assert head is not None, "a causal language model has a head"
    return model.get_input_embeddings(), head


def attach_hooks(owner: PreTrainedModel) -> None:
    """Give the present embedding and head their hooks, once each, and keep them there.

    Resizing replaces the head, so the model itself checks again before each of its forwards. What PEFT was told of
    the offsets by then is guarded: saved, it loads only where they are added. PEFT's trainable tokens would bypass the
    hooks, and are a ConfigError.
    """
    if GUARD_NAME not in dict(owner.named_children()):
        owner.add_module(GUARD_NAME, _OffsetGuard())
    configs: Mapping[str, PeftConfig] = vars(owner).get("peft_config", {})
    for config in configs.values():
        if isinstance(config, LoraConfig) and ADAPTER_NAME in (config.modules_to_save or ()):
            others = config.trainable_token_indices or {}
            if isinstance(others, dict) and GUARD_NAME not in others:  # a list is the embedding's, refused elsewhere
                config.trainable_token_indices = {**others, GUARD_NAME: []}
    embedding, head = embedding_and_head(owner)
    for module, hook in ((embedding, _EmbeddingHook(owner)), (head, _HeadHook(owner))):
        if isinstance(module, TrainableTokensWrapper):
            raise ConfigError("trainable_token_indices and coord offsets train the same rows; use one of them")
        # PEFT may have wrapped the hooked module; torch has no public list of hooks.
        present = [one for part in module.modules() for one in part._forward_hooks.values()]  # pyright: ignore
        if not any(type(one) is type(hook) for one in present):
            module.register_forward_hook(hook, with_kwargs=True)
    if _before_forward not in owner._forward_pre_hooks.values():  # pyright: ignore[reportPrivateUsage]
        owner.register_forward_pre_hook(_before_forward)
        owner.register_load_state_dict_pre_hook(_refuse_a_lost_head)


class _OffsetGuard(TrainableTokensWrapper):
    """What makes PEFT refuse saved coord offsets on a model that would not add them: a module that holds nothing.

    PEFT skips a module of ``modules_to_save`` that a model lacks, without a word: the adapter would load, and every
    coord token be wrong. What it does insist on finding is a module named in ``trainable_token_indices``. So a
    configuration with coord offsets names this one there, which PEFT takes for one it has wrapped already, and leaves
    alone; every way of loading it with PEFT or transformers alone ends in ``ValueError: Target modules
    {'coord_offsets_need_...'} not found in the base model``.
    """

    adapter_layer_names = ()
    other_param_names = ()
    __getattr__ = nn.Module.__getattr__  # PEFT's own looks into the module that it wraps, and there is none

    def __init__(self) -> None:
        nn.Module.__init__(self)
        self._active_adapter: list[str] = []
        self._disable_adapters = False
        self._adapters: set[str] = set()

    def _nothing(self, *args: object, **kwargs: object) -> None: ...

    # Whatever PEFT asks of a wrapper for an adapter that is added, switched, activated or deleted.
    update = enable_adapters = check_set_adapter = set_adapter = delete_adapter = _nothing

    def adapter_state_dict(self, adapter_name: str, state_dict: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return {}

    def adapter_state_dict_load_map(self, adapter_name: str) -> dict[str, str]:
        return {}

    def unload_and_optionally_merge_module(
        self, merge: bool, safe_merge: bool, adapter_names: list[str] | None
    ) -> Self:
        """Stay when PEFT's own layers are taken out, as the offsets do."""
        return self


@dataclass(eq=False)
class _Hook:
    owner: PreTrainedModel

    def __deepcopy__(self, memo: dict[int, object]) -> Self:
        """Follow a copied model; a copy of the hooked module alone (``modules_to_save``) keeps its model."""
        return type(self)(cast("PreTrainedModel", memo.get(id(self.owner), self.owner)))


class _EmbeddingHook(_Hook):
    """Adds the offsets to looked-up rows."""

    def __call__(
        self, module: nn.Module, args: tuple[Tensor, ...], kwargs: Mapping[str, Tensor], output: Tensor
    ) -> Tensor:
        adapter = active_offset(self.owner)
        return output if adapter is None else adapter.add_to_embeddings(output, _input(args, kwargs))


class _HeadHook(_Hook):
    """Adds the offsets' part to the logits."""

    def __call__(
        self, module: nn.Module, args: tuple[Tensor, ...], kwargs: Mapping[str, Tensor], output: Tensor
    ) -> Tensor:
        hidden = _input(args, kwargs)
        if output is hidden:  # the head is bypassed (model.head_bypass): these are hidden states, not logits
            return output
        adapter = active_offset(self.owner)
        return output if adapter is None else adapter.add_to_logits(output, hidden)


def _before_forward(module: nn.Module, args: tuple[object, ...]) -> None:
    owner = cast("PreTrainedModel", module)
    slot = adapter_slot(owner)
    if isinstance(slot, CoordOffsetAdapter) and owner.training and "peft_config" in vars(owner):
        raise ConfigError(
            "PEFT froze the coord offsets and would not save them; wrap the model with "
            f"modules_to_save=[{ADAPTER_NAME!r}]"
        )
    if slot is not None:
        attach_hooks(owner)


def _active_copy(owner: PreTrainedModel, wrapper: ModulesToSaveWrapper) -> nn.Module:
    if wrapper.disable_adapters:
        return wrapper.original_module
    names = list(wrapper.active_adapters)
    if names:
        return wrapper.modules_to_save[names[0]]
    # Nothing is active here; PEFT's delete_adapter may have moved on to an adapter that does have offsets.
    layer = next((module for module in owner.modules() if isinstance(module, BaseTunerLayer)), None)
    for name in [] if layer is None else layer.active_adapters:
        if name in wrapper.modules_to_save:
            raise ConfigError(f"PEFT activated adapter {name!r} without its coord offsets; call set_adapter({name!r})")
    return wrapper.original_module


def _refuse_a_lost_head(module: nn.Module, state_dict: Mapping[str, Tensor], prefix: str, *_unused: object) -> None:
    """Refuse a second table where one is installed; PEFT leaves it under its saved name, which nothing loads."""
    slot = adapter_slot(cast("PreTrainedModel", module))
    if isinstance(slot, ModulesToSaveWrapper):
        check_tables(slot.original_module, state_dict, prefix=f"{prefix}{ADAPTER_NAME}.")


def _input(args: tuple[Tensor, ...], kwargs: Mapping[str, Tensor]) -> Tensor:
    return args[0] if args else kwargs["input"]
