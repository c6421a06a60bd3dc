"""How a model finds its coord-offset adapter: forward hooks that look it up each time they run.

A hook holds the model and not the adapter, because PEFT replaces the adapter::

    after install                   after get_peft_model(modules_to_save=["coord_offset_adapter"])

    model                           model
    |- embed_tokens  + hook         |- embed_tokens  + hook -----.
    |- lm_head       + hook         |- lm_head       + hook ----.|   active_offset(model)
    |- coord_offset_adapter         |- coord_offset_adapter <---''     = the copy of the active PEFT adapter
    `- coord_offsets_need_...       |  |- original_module, zero        (under disable_adapter(): the original)
         (_OffsetGuard)             |  `- modules_to_save[name], trains
                                    `- coord_offsets_need_...

What can go wrong, and who prevents it:

- The head is replaced (``resize_token_embeddings``) and loses its hook: ``_before_forward`` attaches it again.
- PEFT freezes the adapter because it was not named in ``modules_to_save``: ``_before_forward`` refuses to train.
- PEFT alone loads a saved adapter and skips the offsets without a word: ``_OffsetGuard`` makes it fail.
- Two tables are loaded into a model with one: ``_refuse_a_lost_head``.
- PEFT's trainable tokens replace the embedding's forward, so that no hook runs: ``attach_hooks`` refuses.
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
    """Return the offset adapter that acts, and trains, at this moment: PEFT's active copy.

    Args:
        model: a Hugging Face model, in any wrappers.

    Returns:
        None if the model has none. Under ``disable_adapter()``, and while a PEFT adapter without offsets is active,
        the one of the base model, which is zero.

    Raises:
        ConfigError: if PEFT activated an adapter's layers but not its offsets.
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
    """Give the present embedding and head their hooks, once each, and make the model repeat that before each forward.

    Also names the guard in every PEFT configuration that has the offsets, so that an adapter saved later does not load
    without them (:class:`_OffsetGuard`).

    Raises:
        ConfigError: if PEFT's ``trainable_token_indices`` wraps the embedding or head.
    """
    if GUARD_NAME not in dict(owner.named_children()):
        owner.add_module(GUARD_NAME, _OffsetGuard())
    configs: Mapping[str, PeftConfig] = vars(owner).get("peft_config", {})
    for config in configs.values():
        if isinstance(config, LoraConfig) and ADAPTER_NAME in (config.modules_to_save or ()):
            trainable = config.trainable_token_indices or {}
            # A list instead of a dict names rows of the embedding; the loop below refuses it.
            if isinstance(trainable, dict) and GUARD_NAME not in trainable:
                config.trainable_token_indices = {**trainable, GUARD_NAME: []}
    embedding, head = embedding_and_head(owner)
    for module, hook in ((embedding, _EmbeddingHook(owner)), (head, _HeadHook(owner))):
        if isinstance(module, TrainableTokensWrapper):
            raise ConfigError("trainable_token_indices and coord offsets train the same rows; use one of them")
        if not _has_hook(module, type(hook)):
            module.register_forward_hook(hook, with_kwargs=True)
    if _before_forward not in owner._forward_pre_hooks.values():  # pyright: ignore[reportPrivateUsage]
        owner.register_forward_pre_hook(_before_forward)
        owner.register_load_state_dict_pre_hook(_refuse_a_lost_head)


def _has_hook(module: nn.Module, hook_type: type["_Hook"]) -> bool:
    """Return whether a module carries a hook of this type, also if PEFT has wrapped the module since."""
    for submodule in module.modules():
        # torch has no public list of the hooks of a module.
        hooks = submodule._forward_hooks.values()  # pyright: ignore[reportPrivateUsage]
        if any(type(hook) is hook_type for hook in hooks):
            return True
    return False


class _OffsetGuard(TrainableTokensWrapper):
    """An empty module that makes PEFT refuse saved coord offsets on a model that would not add them.

    If a model lacks a module of ``modules_to_save``, PEFT skips it without a word. The adapter would load, and every
    coord token would be wrong. But PEFT does insist on finding each module that ``trainable_token_indices`` names. So a
    configuration with coord offsets names this module there:

    - On our model PEFT finds it, takes it for a module that it has wrapped already, and leaves it alone.
    - On any other model, every way of loading the adapter with PEFT or transformers alone ends in ``ValueError: Target
      modules {'coord_offsets_need_...'} not found in the base model``.
    """

    adapter_layer_names = ()
    other_param_names = ()
    __getattr__ = nn.Module.__getattr__  # PEFT's own looks into the wrapped module, and here is none

    def __init__(self) -> None:
        nn.Module.__init__(self)
        self._active_adapter: list[str] = []
        self._disable_adapters = False
        self._adapters: set[str] = set()

    def _nothing(self, *args: object, **kwargs: object) -> None: ...

    # What PEFT calls on a wrapper when an adapter is added, switched, activated or deleted.
    update = enable_adapters = check_set_adapter = set_adapter = delete_adapter = _nothing

    def adapter_state_dict(self, adapter_name: str, state_dict: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return {}

    def adapter_state_dict_load_map(self, adapter_name: str) -> dict[str, str]:
        return {}

    def unload_and_optionally_merge_module(
        self, merge: bool, safe_merge: bool, adapter_names: list[str] | None
    ) -> Self:
        """Stay in the model when PEFT takes its own layers out: the offsets stay as well."""
        return self


@dataclass(eq=False)
class _Hook:
    """A forward hook that knows the model it belongs to."""

    owner: PreTrainedModel

    def __deepcopy__(self, memo: dict[int, object]) -> Self:
        """Point to the copy if the whole model is copied, and to the same model if only the hooked module is.

        PEFT copies the hooked module alone if a user names ``lm_head`` in ``modules_to_save``.
        """
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
        if output is hidden:  # the head is bypassed (model/head_bypass.py): these are hidden states, not logits
            return output
        adapter = active_offset(self.owner)
        return output if adapter is None else adapter.add_to_logits(output, hidden)


def _before_forward(module: nn.Module, args: tuple[object, ...]) -> None:
    """Attach the hooks again, or raise a ConfigError if the offsets are frozen while the model trains."""
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
    """Return which of its copies PEFT's wrapper uses now."""
    if wrapper.disable_adapters:
        return wrapper.original_module
    names = list(wrapper.active_adapters)
    if names:
        return wrapper.modules_to_save[names[0]]
    # No offsets are active. But after delete_adapter PEFT may have activated the layers of an adapter that has offsets,
    # and left its offsets off: half of that adapter would answer.
    layer = next((module for module in owner.modules() if isinstance(module, BaseTunerLayer)), None)
    layer_names = [] if layer is None else layer.active_adapters
    for name in layer_names:
        if name in wrapper.modules_to_save:
            raise ConfigError(f"PEFT activated adapter {name!r} without its coord offsets; call set_adapter({name!r})")
    return wrapper.original_module


def _refuse_a_lost_head(module: nn.Module, state_dict: Mapping[str, Tensor], prefix: str, *_unused: object) -> None:
    """Refuse two saved tables if one is installed.

    PEFT renames only keys that it expects. The second table would keep its saved name, which nothing loads.
    """
    slot = adapter_slot(cast("PreTrainedModel", module))
    if isinstance(slot, ModulesToSaveWrapper):
        check_tables(slot.original_module, state_dict, prefix=f"{prefix}{ADAPTER_NAME}.")


def _input(args: tuple[Tensor, ...], kwargs: Mapping[str, Tensor]) -> Tensor:
    return args[0] if args else kwargs["input"]
