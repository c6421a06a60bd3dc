"""Every private name of transformers, PEFT and MLflow that coordexp uses, and what for; of Ray it uses none.

:mod:`tests.upgrade.used` finds what is used; ``tests/upgrade/test_upgrade.py`` fails where that is not listed here.
"""

import functools
import importlib
import inspect
from dataclasses import dataclass
from importlib.metadata import version
from types import ModuleType

PACKAGES = ("ray", "transformers", "peft", "mlflow")
# Without an underscore, and yet outside what the packages document or promise to keep.
UNDOCUMENTED_MODULES = (
    "ray.train.v2",
    "ray.core.generated",
    "transformers.convert_slow_tokenizer",
    "transformers.initialization",
    "transformers.integrations",
    "transformers.models.qwen3_vl.modeling_qwen3_vl",
    "transformers.trainer_pt_utils",
    "transformers.vision_utils",
    "peft.utils.other",
    "mlflow.utils",
)
# Names with an underscore that coordexp asks of objects of other packages, which this list is not about.
OF_OTHERS = {
    "_replace": "a named tuple: documented",
    "_forward_pre_hooks": "torch",
    "_forward_hooks": "torch",
    "_iterator": "torch",
    "_shutdown_workers": "torch",
    "_storage": "Optuna",
    "_global_grad_norm": "DeepSpeed",
    "_original_forward": "accelerate",
}


@dataclass(frozen=True)
class PrivateName:
    """A name that is not public.

    Attributes:
        path: module and name.
        used_for: what of ours stops working without it.
        parameters: that we call it with, or that it calls ours with.
        attributes: that we use of it.
    """

    path: str
    used_for: str
    parameters: tuple[str, ...] = ()
    attributes: tuple[str, ...] = ()


_QWEN = "transformers.models.qwen3_vl.modeling_qwen3_vl"
_TRAINER = "transformers.Trainer"
_TABLE = "peft.utils.other.TrainableTokensWrapper"
TRANSFORMERS = (
    PrivateName(f"{_TRAINER}._save", "saving adapters alone", ("output_dir", "state_dict")),
    PrivateName(f"{_TRAINER}._prepare_inputs", "putting our batch on the device", ("inputs",)),
    PrivateName(f"{_TRAINER}._get_train_sampler", "the order of samples", ("train_dataset",)),
    PrivateName(f"{_TRAINER}._get_num_items_in_batch", "the divisor of the loss", ("batch_samples", "device")),
    PrivateName(f"{_TRAINER}._get_dataloader", "our own loader", ("sampler_fn", "batch_size")),
    PrivateName(f"{_TRAINER}._train_batch_size", "our own loader"),
    PrivateName(f"{_TRAINER}._load_from_checkpoint", "the weights of a finished run", ("resume_from_checkpoint",)),
    PrivateName(f"{_TRAINER}._load_rng_state", "resuming on another number of ranks", ("checkpoint",)),
    PrivateName(f"{_TRAINER}._clip_grad_norm", "stopping before a step that is not finite", ("model",)),
    PrivateName("transformers.PreTrainedConfig._attn_implementation", "which attention a run computes with"),
    PrivateName(
        f"{_QWEN}.Qwen3VLTextModel._deepstack_process",
        "adding image features at known places",
        ("hidden_states", "visual_pos_masks", "visual_embeds"),
    ),
    PrivateName(f"{_QWEN}.Qwen3VLModel", "all images of a batch in one pass", (), ("forward", "get_image_features")),
    PrivateName(f"{_QWEN}.Qwen3VLTextModel", "adding image features at known places"),
    PrivateName(f"{_QWEN}.Qwen3VLVisionModel", "all images of a batch in one pass"),
    PrivateName(f"{_QWEN}.Qwen3VLVisionAttention", "attention of equally large images", (), ("forward",)),
    PrivateName(f"{_QWEN}.apply_rotary_pos_emb_vision", "attention of equally large images"),
    PrivateName(f"{_QWEN}.eager_attention_forward", "attention of equally large images"),
    PrivateName("transformers.vision_utils.get_vision_interpolation_indices_and_weights", "remembering image sizes"),
    PrivateName("transformers.vision_utils.get_vision_position_ids", "remembering image sizes"),
    PrivateName("transformers.convert_slow_tokenizer.bytes_to_unicode", "the bytes of a token in JSON"),
    PrivateName("transformers.initialization.no_init_weights", "checking a checkpoint without making its weights"),
    PrivateName("transformers.integrations.deepspeed.unset_hf_deepspeed_config", "a second run in one process"),
    PrivateName("transformers.trainer_pt_utils.safe_globals", "random state from a checkpoint"),
)
PEFT = (
    PrivateName(_TABLE, "refusing coordinate offsets to a reader that does not know them"),
    PrivateName(f"{_TABLE}._active_adapter", "the same: what PEFT asks of every wrapper"),
    PrivateName(f"{_TABLE}._disable_adapters", "the same"),
    PrivateName(f"{_TABLE}._adapters", "the same"),
    PrivateName("peft.tuners.lora.LoraLayer._cast_input_dtype", "no casts that autocast takes back", ("x", "dtype")),
)
MLFLOW = (
    PrivateName("mlflow.utils.credentials.get_default_host_creds", "asking a server whether it answers"),
    PrivateName(
        "mlflow.utils.rest_utils.http_request",
        "the same, without the minutes of MLflow's own retries",
        ("host_creds", "endpoint", "method"),
    ),
    PrivateName("mlflow.utils.rest_utils.verify_rest_response", "the same", ("response", "endpoint")),
)
NAMES = (*TRANSFORMERS, *PEFT, *MLFLOW)


def moved(name: PrivateName) -> str | None:
    """Return what is wrong with a name in this environment, or None."""
    package = name.path.partition(".")[0]
    found, parts = _module_of(name.path)
    where = f"{package} {version(package)}: {name.path}"
    for part in parts:
        if not hasattr(found, part):
            if part == parts[-1] and inspect.isclass(found) and is_set_in(found, part):
                return None
            return f"{where} moved; used for {name.used_for}"
        found = getattr(found, part)
    fields = found.DESCRIPTOR.fields_by_name if hasattr(found, "DESCRIPTOR") else ()  # of a protobuf message
    for attribute in name.attributes:
        if not hasattr(found, attribute) and attribute not in fields:
            return f"{where} has no {attribute} any more; used for {name.used_for}"
    if name.parameters:
        known = inspect.signature(found).parameters  # pyright: ignore[reportArgumentType]
        lost = [parameter for parameter in name.parameters if parameter not in known]
        if lost:
            return f"{where} takes no {', '.join(lost)} any more; used for {name.used_for}"
    return None


def is_set_in(cls: type, attribute: str) -> bool:
    """Return whether a class, or one that it extends in its package, sets ``self.<attribute>``."""
    package = cls.__module__.partition(".")[0]
    for base in cls.__mro__:
        if base.__module__.partition(".")[0] != package:
            continue
        source = _source_of(base)
        if f"self.{attribute} = " in source or f"self.{attribute}: " in source:
            return True
    return False


@functools.cache
def _source_of(cls: type) -> str:
    try:
        return inspect.getsource(cls)
    except (OSError, TypeError):  # compiled, or made while running
        return ""


def _module_of(path: str) -> tuple[ModuleType, list[str]]:
    """Return the longest part of a path that is a module, and the names after it."""
    parts = path.split(".")
    for end in range(len(parts) - 1, 0, -1):
        name = ".".join(parts[:end])
        try:
            return importlib.import_module(name), parts[end:]
        except ModuleNotFoundError as error:
            if error.name is None or not f"{name}.".startswith(f"{error.name}."):
                raise
    raise ModuleNotFoundError(f"{parts[0]} is not installed", name=parts[0])
