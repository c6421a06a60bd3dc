"""A checkpoint of a published shape with random weights, and what stock transformers makes of one.

python -m tests.rehearsal.checkpoint write qwen3_vl 2b DIR   # the files that the hub would give
python -m tests.rehearsal.checkpoint load PICTURE DIR ...    # nothing of coordexp: tokenizer, weights, some tokens
"""

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import torch
from PIL import Image
from safetensors.torch import save_file
from transformers import AutoConfig, AutoImageProcessor, AutoModelForImageTextToText, AutoTokenizer

from coordexp.model.families import FAMILIES
from tests.support.family_shapes import VOCABULARIES, family_config, write_family_files
from tests.support.real_vocabulary import PUBLISHED, published_config

# The 2B with every number but its widths: what goes wrong with depth in bfloat16 goes wrong in it too.
_SMALL_VISION = {"depth": 24, "hidden_size": 64, "intermediate_size": 128, "deepstack_visual_indexes": [5, 11, 17]}
_SMALL_TEXT = {"hidden": 128, "layers": 28, "heads": 16, "intermediate": 384, "head_dim": 16}
_SMALL = published_config(**_SMALL_TEXT, mrope_section=(4, 2, 2), vision=_SMALL_VISION, tied=True)
SIZES: dict[str, dict[str, dict[str, object]]] = {
    "qwen3_vl": {"2b": PUBLISHED["2B"], "small": _SMALL},
    "qwen3_5": {"0.8b": family_config("Qwen3.5-0.8B"), "small": family_config("small qwen3_5")},
    **{other: {"small": family_config(f"small {other}")} for other in ("qwen2_5_vl", "qwen3_vl_moe", "qwen3_5_moe")},
}
_SPREAD = 0.9  # of a layer's outputs, where its inputs have 1
_LOGITS_SPREAD = 3.0  # a trained model's, over the vocabulary
_SHARDS = 4
_GENERATION = {"do_sample": True, "repetition_penalty": 1.0, "temperature": 0.7, "top_k": 20, "top_p": 0.8}


def write_checkpoint(path: Path, family: str, size: str) -> None:
    """Write configuration, tokenizer, processors and bfloat16 weights, holding one shard in memory at a time."""
    path.mkdir(parents=True)
    published = SIZES[family][size]
    (path / "config.json").write_text(json.dumps(published, indent=2))
    write_family_files(path, family, path.with_name("tokenizer"))
    pad, end = AutoTokenizer.from_pretrained(path).convert_tokens_to_ids(["<|endoftext|>", "<|im_end|>"])
    generation = _GENERATION | {"bos_token_id": pad, "pad_token_id": pad, "eos_token_id": [end, pad]}
    (path / "generation_config.json").write_text(json.dumps(generation, indent=2))
    torch.manual_seed(0)
    if FAMILIES[family].on_disk == "modules":
        _write_shards(path)
    else:
        _write_converted(path)
        (path / "config.json").write_text(json.dumps(published, indent=2))  # not as this transformers writes it


def _write_converted(path: Path) -> None:
    """Write the weights of a small model by the names that they have in files, which are not those of the model."""
    model = AutoModelForImageTextToText.from_config(AutoConfig.from_pretrained(path), dtype=torch.bfloat16)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(_weight(name, parameter.shape, centre=_centre(model.config.model_type, name)))
    model.save_pretrained(path)


def _write_shards(path: Path) -> None:
    config = AutoConfig.from_pretrained(path)
    with torch.device("meta"):
        model = AutoModelForImageTextToText.from_config(config, dtype=torch.bfloat16)
    shapes = {name: weight.shape for name, weight in model.state_dict().items() if name != "lm_head.weight"}
    total = 2 * sum(shape.numel() for shape in shapes.values())
    shards = list(_shards(shapes, total // _SHARDS))
    files: dict[str, str] = {}
    for number, names in enumerate(shards, start=1):
        file = f"model-{number:05d}-of-{len(shards):05d}.safetensors"
        tensors = {name: _weight(name, shapes[name], centre=_centre(config.model_type, name)) for name in names}
        save_file(tensors, path / file, metadata={"format": "pt"})
        files |= dict.fromkeys(names, file)
    index = {"metadata": {"total_size": total}, "weight_map": files}
    (path / "model.safetensors.index.json").write_text(json.dumps(index, indent=2))


def _shards(shapes: dict[str, torch.Size], most_bytes: int) -> Iterator[list[str]]:
    shard: list[str] = []
    num_bytes = 0
    for name, shape in shapes.items():
        if shard and num_bytes + 2 * shape.numel() > most_bytes:
            yield shard
            shard, num_bytes = [], 0
        shard.append(name)
        num_bytes += 2 * shape.numel()
    yield shard


def _centre(model_type: str, name: str) -> float:
    """Return the weight with which a norm scales by 1: most norms of Qwen3.5's text add one to it."""
    adds_one = (
        model_type.startswith("qwen3_5") and "language_model" in name and not name.endswith("linear_attn.norm.weight")
    )
    return 0.0 if adds_one else 1.0


def _weight(name: str, shape: torch.Size, *, centre: float) -> torch.Tensor:
    weight = torch.empty(shape, dtype=torch.bfloat16)
    if len(shape) > 1:
        inputs = shape[-1] if ".experts." in name else shape[1:].numel()
        return weight.normal_(0, _SPREAD / inputs**0.5)
    if name == "model.language_model.norm.weight":
        return weight.fill_(_LOGITS_SPREAD / _SPREAD - 1 + centre)
    return weight.fill_(centre if name.endswith(".weight") else 0.0)


def load_stock(path: Path, picture: Path, dtype: str) -> None:
    """Load a merged checkpoint as anybody would, look at it, and let it say something about a picture."""
    model, found = AutoModelForImageTextToText.from_pretrained(path, dtype="auto", output_loading_info=True)
    assert not any(found.values()), found
    assert str(model.dtype) == f"torch.{dtype}", model.dtype
    tokenizer = AutoTokenizer.from_pretrained(path)
    coord_ids = tokenizer.convert_tokens_to_ids([f"<|coord_{number}|>" for number in (0, 999)])
    _, first_id, _ = VOCABULARIES[model.config.model_type]
    table = model.get_input_embeddings().weight
    assert coord_ids == [first_id, first_id + 999], coord_ids
    assert len(table) > coord_ids[1], table.shape
    assert (model.get_output_embeddings().weight is table) is model.config.tie_word_embeddings

    image = AutoImageProcessor.from_pretrained(path)(images=Image.open(picture), return_tensors="pt")
    content = [{"type": "image"}, {"type": "text", "text": "Detect all objects."}]
    text = tokenizer.apply_chat_template(
        [{"role": "user", "content": content}], tokenize=False, add_generation_prompt=True, enable_thinking=False
    )
    num_pads = int(image["image_grid_thw"].prod()) // 4
    ids = tokenizer(text.replace("<|image_pad|>", "<|image_pad|>" * num_pads), return_tensors="pt")["input_ids"]
    kinds = (ids == model.config.image_token_id).int()
    answer = model.generate(input_ids=ids, mm_token_type_ids=kinds, **image, max_new_tokens=8, do_sample=False)
    with torch.no_grad():
        logits = model(input_ids=ids, mm_token_type_ids=kinds, **image, logits_to_keep=1).logits[0, -1].float()
    assert bool(logits.isfinite().all())
    print(f"logits: spread {logits.std():.2f}, largest {logits.abs().max():.1f}")
    print(f"wrote: {tokenizer.decode(answer[0, ids.shape[1] :])!r}")


if __name__ == "__main__":
    verb, first, *others = sys.argv[1:]
    if verb == "write":
        write_checkpoint(Path(others[1]), first, others[0])
    else:
        picture, *folders = map(Path, others)
        for folder in folders:
            load_stock(folder, picture, first)
