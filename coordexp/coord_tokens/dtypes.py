"""The names by which a configuration and a file call the numbers of a tensor; nothing large is imported here."""

from typing import Literal

import torch

DTypeName = Literal["auto", "float32", "bfloat16", "float16"]

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
