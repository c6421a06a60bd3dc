"""How many parameters a run has and trains, exactly: its model is built on the meta device, where nothing is stored."""

import copy
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from peft import PeftModel
from torch import nn
from transformers import AutoModelForImageTextToText, PreTrainedModel, Qwen3VLConfig

from coordexp.config.schema import ExperimentConfig
from coordexp.errors import CheckpointError
from coordexp.model.checkpoint.empty_model import Dimensions
from coordexp.model.progress import quiet
from coordexp.train.setup.components import param_groups, with_adapters

_CONFIG_ERRORS = (ValueError, KeyError, TypeError, RuntimeError, ImportError, AttributeError, AssertionError)


@dataclass(frozen=True)
class Sizes:
    """Parameters of a run's model.

    Attributes:
        num: all of them, the trained ones included; tied tables count once.
        num_bytes: of all.
        num_trained: that the optimizer moves.
        trained_bytes: of those.
        num_float32: in float32, of which autocast keeps bfloat16 copies.
    """

    num: int
    num_bytes: int
    num_trained: int
    trained_bytes: int
    num_float32: int

    @classmethod
    def of(cls, model: nn.Module) -> "Sizes":
        """Count a model's parameters."""
        every = list(model.parameters())
        trained = [parameter for parameter in every if parameter.requires_grad]
        return cls(
            num=_num(every),
            num_bytes=_num_bytes(every),
            num_trained=_num(trained),
            trained_bytes=_num_bytes(trained),
            num_float32=_num([parameter for parameter in every if parameter.dtype == torch.float32]),
        )


def meta_model(config: Qwen3VLConfig, *, dtype: torch.dtype) -> PreTrainedModel:
    """Return the model of a configuration, without data.

    Raises:
        CheckpointError: if the configuration makes no model.
    """
    try:
        with torch.device("meta"), quiet():
            # A copy: making a model writes its dtype into the configuration.
            model = AutoModelForImageTextToText.from_config(copy.deepcopy(config), dtype=dtype)
    except _CONFIG_ERRORS as error:
        raise CheckpointError(f"config.json makes no model ({type(error).__name__}: {error})") from None
    assert isinstance(model, PreTrainedModel)
    return model


def expanded_config(config: Qwen3VLConfig, *, num_tokens: int) -> Qwen3VLConfig:
    """Return the configuration with rows for ``num_tokens`` ids at least."""
    expanded = Qwen3VLConfig.from_dict(config.to_dict())
    text = Dimensions.of(expanded).text
    text.vocab_size = max(text.vocab_size, num_tokens)
    return expanded


def meta_run_model(
    config: Qwen3VLConfig, run: ExperimentConfig, *, dtype: torch.dtype, coord_ids: range, num_extra_ids: int
) -> PreTrainedModel | PeftModel:
    """Return the model as a run trains it: vocabulary expanded, offsets and adapters on it, without data.

    Args:
        config: of the base.
        run: what trains.
        dtype: of the base's weights.
        coord_ids: of the coord tokens.
        num_extra_ids: added structure tokens, which join the offset adapter behind them.
    """
    ids = range(coord_ids.start, coord_ids.stop + num_extra_ids)
    model = meta_model(expanded_config(config, num_tokens=ids.stop), dtype=dtype)
    with torch.device("meta"):
        return with_adapters(run, model, offset_ids=ids)


def check_optimizer(model: nn.Module, run: ExperimentConfig) -> int:
    """Build the optimizer's groups as a run would; return how many there are.

    Raises:
        ConfigError: if a learning rate has nothing to move, or optimizer and offsets do not go together.
    """
    return len(param_groups(run, model))


def expected_shapes(model: PreTrainedModel) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Yield name and shape of every weight that ``from_pretrained`` would read; a tied head is none."""
    head, embedding = model.get_output_embeddings(), model.get_input_embeddings()
    tied = head is not None and head.weight is embedding.weight
    for name, tensor in model.state_dict().items():
        if not (tied and name == "lm_head.weight"):
            yield name, tuple(tensor.shape)


def _num(parameters: list[nn.Parameter]) -> int:
    return sum(parameter.numel() for parameter in parameters)


def _num_bytes(parameters: list[nn.Parameter]) -> int:
    return sum(parameter.numel() * parameter.dtype.itemsize for parameter in parameters)
