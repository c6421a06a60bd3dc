"""Names of tensor dtypes in configurations and files. Kept apart so that readers of names import nothing large."""

from typing import Literal

import torch

DTypeName = Literal["auto", "float32", "bfloat16", "float16"]

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
