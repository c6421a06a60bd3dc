"""Tiny expanded checkpoints and trained-looking adapters, made once."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file, save_file

from coordexp.coord_tokens.offset_adapter import install_coord_offset_adapter
from coordexp.coord_tokens.vocab import expand_vocab
from coordexp.model.checkpoint.adapter import save_adapter
from coordexp.model.loading import load
from coordexp.model.lora import apply_tuning
from coordexp.model.tiny.parts import build_tokenizer, save_base
from tests.support.real_vocabulary import write_narrow
from tests.support.tiny_model import build_shallow

MakeBase = Callable[..., Path]
MakeAdapted = Callable[..., PeftModel]


@pytest.fixture(scope="session")
def make_base(tmp_path_factory) -> MakeBase:
    """Return the directory of a tiny checkpoint: tied or not, expanded or not, float32 or bfloat16."""
    root = tmp_path_factory.mktemp("bases")

    def make(*, tied: bool = True, structure: str | None = "native", dtype: torch.dtype = torch.float32) -> Path:
        path = root / f"{'tied' if tied else 'untied'}-{structure}-{str(dtype)[6:]}"
        if not path.exists():
            tokenizer = build_tokenizer()
            model = build_shallow(tokenizer, tie_word_embeddings=tied)
            if structure is not None:
                expand_vocab(model, tokenizer, init="numeric", structure=structure)
            save_base(path, model.to(dtype), tokenizer)
        return path

    return make


@pytest.fixture(scope="session")
def make_adapted() -> MakeAdapted:
    """Load a base and give it adapters with random, not zero, weights."""

    def make(base: Path, *, tuning: str = "lora", tie_head: bool | None = True, vision: bool = True) -> PeftModel:
        loaded = load(base)
        if tie_head is not None:
            ids = [*loaded.vocab.coord_ids, *loaded.vocab.added_structure_ids]
            install_coord_offset_adapter(loaded.model, coord_ids=ids, tie_head=tie_head)
        model = apply_tuning(loaded.model, tuning=tuning, rank=4, alpha=8.0, dropout=0.0, vision=vision, seed=0)
        generator = torch.Generator().manual_seed(1)
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.requires_grad:
                    parameter += 0.05 * torch.randn(parameter.shape, generator=generator)
        return model.eval()

    return make


@pytest.fixture(scope="session")
def make_adapter(make_adapted, tmp_path_factory) -> Callable[..., Path]:
    """Save such an adapter, once for each combination."""
    root = tmp_path_factory.mktemp("adapters")

    def make(base: Path, **kwargs: object) -> Path:
        path = root / "-".join([base.name, *(f"{key}={value}" for key, value in kwargs.items())])
        if not path.exists():
            save_adapter(make_adapted(base, **kwargs), path)
        return path

    return make


@pytest.fixture(scope="session")
def sharded() -> Callable[[Path, Path], Path]:
    """Copy a checkpoint and split its weights in two files with an index."""

    def split(base: Path, target: Path) -> Path:
        shutil.copytree(base, target)
        weights = load_file(base / "model.safetensors")
        names = sorted(weights)
        files = {"model-00001-of-00002.safetensors": names[:50], "model-00002-of-00002.safetensors": names[50:]}
        for file, members in files.items():
            save_file({name: weights[name] for name in members}, target / file, {"format": "pt"})
        (target / "model.safetensors").unlink()
        weight_map = {name: file for file, members in files.items() for name in members}
        index = {"metadata": {"total_size": 1}, "weight_map": weight_map}
        (target / "model.safetensors.index.json").write_text(json.dumps(index))
        return target

    return split


@pytest.fixture(scope="session")
def make_narrow(qwen_tokenizer, tmp_path_factory) -> Callable[..., Path]:
    """Return a narrow checkpoint with the true vocabulary, in shards unless ``max_shard_size`` says otherwise."""
    root = tmp_path_factory.mktemp("narrow")

    def make(*, tied: bool = True, max_shard_size: str = "12MB") -> Path:
        path = root / f"{tied}-{max_shard_size}"
        return path if path.exists() else write_narrow(path, qwen_tokenizer, tied=tied, max_shard_size=max_shard_size)

    return make
