"""A run on a device that is not the CPU, made of the CPU: where a GPU would refuse two tensors, so does this.

Its tensors keep their values on the CPU and say that they are elsewhere. An operation of one of them with a tensor of
the CPU ends the run, as CUDA would, but for what CUDA allows as well: numbers, copies, and indices. What belongs to a
GPU's own type is not seen: autocast in bfloat16, memory that is pinned, kernels. :func:`main` is for a process of its
own, since torch keeps the device's name, and what looks at memory is changed here for good.
"""

import contextlib
import functools
from collections.abc import Callable, Generator
from pathlib import Path

import peft.peft_model
import torch
from accelerate.state import PartialState
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils import backend_registration
from torch.utils._python_dispatch import TorchDispatchMode, return_and_correct_aliasing
from torch.utils._pytree import tree_iter, tree_map
from transformers import TrainingArguments

NAME = "elsewhere"
# With tensors of both, CUDA copies or looks up.
_OF_BOTH = {"aten::copy_", "aten::_to_copy", "aten::index", "aten::index_put", "aten::index_put_"}


class Elsewhere(Tensor):
    """A tensor of the device; ``here`` has its values."""

    here: Tensor

    @staticmethod
    def __new__(cls, here: Tensor) -> "Elsewhere":
        """Wrap a tensor of the CPU."""
        layout = {"strides": here.stride(), "storage_offset": here.storage_offset(), "dtype": here.dtype}
        made = Tensor._make_wrapper_subclass(cls, here.size(), device=torch.device(NAME, 0), **layout)
        made.here = here
        return made

    __torch_function__ = torch._C._disabled_torch_function_impl

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        return _compute(func, args, kwargs or {})

    def tolist(self):
        """Copy back, which torch does for no class of others."""
        return self.detach().cpu().tolist()

    def numpy(self, **keys: object):
        """Refuse, as a GPU's tensors do."""
        raise TypeError(f"numpy reads no tensor of {NAME}")

    __array__ = numpy

    def __repr__(self, **keys: object) -> str:
        """Say no values: torch's own way asks for them one by one."""
        return f"Elsewhere({tuple(self.shape)}, {self.dtype})"

    def __format__(self, form: str) -> str:
        """Show a number."""
        return format(self.item(), form) if self.dim() == 0 else repr(self)


def _compute(func, args, kwargs):
    """Compute on the CPU what is asked of this device; refuse what needs tensors of both."""
    name = func._schema.name
    tensors = [value for value in tree_iter((args, kwargs)) if isinstance(value, Tensor)]
    elsewhere = any(isinstance(tensor, Elsewhere) for tensor in tensors)
    asked = kwargs.get("device")
    stays = asked is None or torch.device(asked).type == NAME
    if not elsewhere and (asked is None or not stays):
        return func(*args, **kwargs)
    may_mix = name in _OF_BOTH and (isinstance(args[0], Elsewhere) or "index" not in name)
    if elsewhere and not may_mix and any(not isinstance(tensor, Elsewhere) and tensor.dim() for tensor in tensors):
        raise RuntimeError(f"{name}: tensors of two devices, {tensors}")
    on_cpu = {key: value for key, value in kwargs.items() if key != "pin_memory"}
    if asked is not None and stays:
        on_cpu["device"] = torch.device("cpu")
    result = func(*tree_map(_here, args), **tree_map(_here, on_cpu))
    if name == "aten::copy_" and not isinstance(args[0], Elsewhere):
        return args[0]
    if not stays:
        return result
    result = tree_map(lambda value: Elsewhere(value) if isinstance(value, Tensor) else value, result)
    return return_and_correct_aliasing(func, args, kwargs, result) if elsewhere else result


def _here(value: object) -> object:
    return value.here if isinstance(value, Elsewhere) else value


class _Operations(TorchDispatchMode):
    """Sees what makes tensors of nothing."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return _compute(func, args, kwargs or {})


class _Constructors(TorchFunctionMode):
    """Sees ``torch.tensor``, whose inside no other mode sees."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        keys = dict(kwargs or {})
        if func in (torch.tensor, torch.as_tensor) and not isinstance(args[0], Tensor):
            device = keys.pop("device", None)
            values = tree_map(lambda value: value.item() if isinstance(value, Elsewhere) else value, args[0])
            made = func(values, *args[1:], **keys)
            return made if device is None else made.to(device)
        return func(*args, **keys)


def _copied_back(write: Callable[..., object]) -> Callable[..., object]:
    """Let what writes tensors have those of the CPU; of a GPU's it would copy them itself."""

    @functools.wraps(write)
    def wrapped(content: object, *args: object, **keys: object) -> object:
        return write(
            tree_map(lambda value: value.cpu() if isinstance(value, Tensor) else value, content), *args, **keys
        )

    return wrapped


@contextlib.contextmanager
def another_device() -> Generator[None]:
    """Have a device of another name, which the trainer finds as it would find a GPU."""
    backend_registration._setup_privateuseone_for_python_backend(NAME)
    getattr(torch, NAME).get_amp_supported_dtype = lambda: [torch.bfloat16]
    torch.accelerator.synchronize = lambda *args: None
    torch.__future__.set_swap_module_params_on_conversion(True)  # other classes of tensors are not put in place
    torch.save = _copied_back(torch.save)
    peft.peft_model.safe_save_file = _copied_back(peft.peft_model.safe_save_file)
    peft.peft_model.id_tensor_storage = lambda tensor: id(tensor)  # no weight shares another's memory there
    found_by_transformers = TrainingArguments.__dict__["_setup_devices"].func

    def found(arguments: TrainingArguments) -> torch.device:
        found_by_transformers(arguments)
        arguments._n_gpu = 1
        PartialState._shared_state["device"] = torch.device(NAME, 0)
        return torch.device(NAME, 0)

    TrainingArguments._setup_devices = functools.cached_property(found)
    TrainingArguments._setup_devices.__set_name__(TrainingArguments, "_setup_devices")
    with _Constructors(), _Operations():
        yield


def main(config_file: Path, *, is_killed: bool) -> None:
    """Run one group and seed, from its first step to its merged model; perhaps killed at its first checkpoint."""
    # Inference mode hands whole functions on where their parts are needed.
    torch.inference_mode = lambda mode=True: torch.no_grad() if mode else contextlib.nullcontext()
    from coordexp.config import ExperimentConfig
    from coordexp.runs.folder import RunFolder
    from coordexp.runs.reporter import LocalReporter
    from coordexp.train.run import train_run
    from tests.support.training import StopsAt

    config = ExperimentConfig.model_validate_json(config_file.read_text())
    folder = RunFolder.of(config).path
    with another_device():
        if is_killed:
            with contextlib.suppress(KeyboardInterrupt):
                train_run(config, reporter=StopsAt(folder, step=1), print_line=print)
        train_run(config, reporter=LocalReporter(folder), print_line=print)
