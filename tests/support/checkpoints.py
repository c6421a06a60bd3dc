"""Changed copies of checkpoints and adapters."""

import json
import shutil
from pathlib import Path

from safetensors.torch import load_file, save_file

WEIGHTS, ADAPTER = "model.safetensors", "adapter_model.safetensors"
LAYER = "model.language_model.layers.1.mlp.up_proj"
LORA_B = f"base_model.model.{LAYER}.lora_B.weight"
OFFSET = "base_model.model.coord_offset_adapter.embed_offset"


def edited(source: Path, target: Path, change, *, file: str = WEIGHTS) -> Path:
    """Copy a directory with the tensors of one file changed by ``change(tensors)``."""
    shutil.copytree(source, target)
    tensors = load_file(target / file)
    change(tensors)
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, target / file, {"format": "pt"})
    return target


def edit_json(file: Path, **changes: object) -> None:
    """Change some keys of a file."""
    file.write_text(json.dumps(json.loads(file.read_text()) | changes, indent=2) + "\n")


def configured(source: Path, target: Path, change) -> Path:
    """Copy a checkpoint with its configuration changed by ``change(config)``."""
    shutil.copytree(source, target)
    config = json.loads((target / "config.json").read_text())
    change(config)
    (target / "config.json").write_text(json.dumps(config))
    return target
