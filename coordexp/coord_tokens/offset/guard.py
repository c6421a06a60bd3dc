"""What makes PEFT refuse saved coord offsets on a model that would not add them.

PEFT skips a module of ``modules_to_save`` that a model lacks, without a word: the adapter would load, and every coord
token be wrong. What it does insist on finding is a module named in ``trainable_token_indices``. So a configuration with
coord offsets names one there that only a model with the offset adapter has, under a name that says what to do; every
way of loading it with PEFT or transformers alone ends in ``ValueError: Target modules {'coord_offsets_need_...'} not
found in the base model``.
"""

from collections.abc import Iterable, Mapping
from typing import Self

from peft import LoraConfig, PeftConfig
from peft.utils.other import TrainableTokensWrapper
from torch import Tensor, nn

GUARD_NAME = "coord_offsets_need_coordexp_model_load"


class OffsetGuard(TrainableTokensWrapper):
    """A module that PEFT finds, takes for one it has wrapped already, and leaves alone: it holds nothing."""

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
        """Add nothing to a saved adapter."""
        return {}

    def adapter_state_dict_load_map(self, adapter_name: str) -> dict[str, str]:
        """Expect nothing of a saved adapter."""
        return {}

    def unload_and_optionally_merge_module(
        self, merge: bool, safe_merge: bool, adapter_names: list[str] | None
    ) -> Self:
        """Stay when PEFT's own layers are taken out, as the offsets do."""
        return self


def demand_guard(configs: Iterable[PeftConfig], *, saved_module: str) -> None:
    """Make configurations that name the offset adapter in ``modules_to_save`` demand a model that has it, in place."""
    for config in configs:
        if not isinstance(config, LoraConfig) or saved_module not in (config.modules_to_save or ()):
            continue
        others = config.trainable_token_indices or {}
        if isinstance(others, dict) and GUARD_NAME not in others:  # a list is the embedding's, and refused elsewhere
            config.trainable_token_indices = {**others, GUARD_NAME: []}
