"""Which operations would make the host wait for a device: noted on a CPU, by what they do and who asked."""

import sys
from pathlib import Path

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter
from torch.utils.weak import WeakIdKeyDictionary

# Results whose shape or value the host has to know.
_READS = {
    "aten::_local_scalar_dense", "aten::nonzero", "aten::masked_select", "aten::equal", "aten::_unique2",
    "aten::unique_consecutive", "aten::unique_dim", "aten::bincount",
}  # fmt: skip
_COPIES_BACK = {"tolist", "numpy", "cpu"}
_THIS = Path(__file__)


class HostReads:
    """Inside it, tensors that ``on_device`` was given, and all that is computed of them, count as a device's.

    Attributes:
        found: what waited and for whom, as ``operation in file:function``, in order.
    """

    def __init__(self) -> None:
        self.found: list[str] = []
        self._on_device = WeakIdKeyDictionary()
        self._modes = (_Functions(self), _Operations(self))

    def __enter__(self):
        for mode in self._modes:
            mode.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        for mode in reversed(self._modes):
            mode.__exit__(*error)

    def on_device(self, values: object) -> None:
        """Count the tensors among ``values`` as a device's."""
        for value in tree_iter(values):
            if isinstance(value, Tensor):
                self._on_device[value] = True

    def is_on_device(self, values: object) -> bool:
        """Say whether any tensor among ``values`` is a device's."""
        return any(isinstance(value, Tensor) and value in self._on_device for value in tree_iter(values))

    def note(self, operation: str) -> None:
        """Keep an operation, and the innermost function outside torch that asked for it."""
        frame = sys._getframe(1)
        while frame is not None:
            file = Path(frame.f_code.co_filename)
            if "torch" not in file.parts and file != _THIS and not file.name.startswith("<"):
                self.found.append(f"{operation} in {'/'.join(file.parts[-2:])}:{frame.f_code.co_name}")
                return
            frame = frame.f_back


class _Operations(TorchDispatchMode):
    def __init__(self, reads: HostReads) -> None:
        super().__init__()
        self._reads = reads

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        is_on_device = self._reads.is_on_device((args, kwargs))
        name = func._schema.name
        masked = name in ("aten::index", "aten::index_put", "aten::index_put_") and any(
            index is not None and index.dtype == torch.bool for index in args[1]
        )
        # x[indices] = number: torch makes a tensor of the number on the CPU, and the device's copy of it waits.
        number = name.startswith("aten::index_put") and args[2].ndim == 0 and not self._reads.is_on_device(args[2])
        repeats = name == "aten::repeat_interleave" and kwargs.get("output_size") is None
        if is_on_device and (name in _READS or masked or repeats or number):
            self._reads.note(name)
        result = func(*args, **kwargs)
        if is_on_device:
            self._reads.on_device(result)
        return result


class _Functions(TorchFunctionMode):
    """Sees what never reaches an operation on a CPU: copies back, and copies of memory that is not pinned."""

    def __init__(self, reads: HostReads) -> None:
        super().__init__()
        self._reads = reads

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        if name in _COPIES_BACK and self._reads.is_on_device(args[0]):
            self._reads.note(name)
        if name in ("tensor", "as_tensor") and kwargs.get("device") is not None and not isinstance(args[0], Tensor):
            self._reads.note("upload")
        named = any(isinstance(one, torch.device | str) for one in (*args[1:], kwargs.get("device")))
        if name == "to" and named and not self._reads.is_on_device(args[0]) and not kwargs.get("non_blocking"):
            self._reads.note("upload")
        return func(*args, **kwargs)
