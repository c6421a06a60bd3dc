"""A checkpoint of a published shape with random weights, and what stock transformers makes of one.

python -m tests.rehearsal.checkpoint write 2b DIR           # the files that the hub would give
python -m tests.rehearsal.checkpoint load PICTURE DIR ...   # nothing of coordexp: tokenizer, weights, some tokens
"""

import copy
import json
import sys
from collections.abc import Iterator
from pathlib import Path

import torch
from PIL import Image
from safetensors.torch import save_file
from transformers import (
    AutoImageProcessor,
    AutoModelForImageTextToText,
    AutoTokenizer,
    Qwen3VLConfig,
    Qwen3VLForConditionalGeneration,
)

from tests.unit.model.real_vocabulary import PUBLISHED, published_config, write_qwen_tokenizer, write_small_files

# The 2B with every number but its widths: what goes wrong with depth in bfloat16 goes wrong in it too.
_SMALL_VISION = {"depth": 24, "hidden_size": 64, "intermediate_size": 128, "deepstack_visual_indexes": [5, 11, 17]}
_SMALL_TEXT = {"hidden": 128, "layers": 28, "heads": 16, "intermediate": 384, "head_dim": 16}
_SMALL = published_config(**_SMALL_TEXT, mrope_section=(4, 2, 2), vision=_SMALL_VISION, tied=True)
SIZES = {"2b": PUBLISHED["2B"], "small": _SMALL}
_SPREAD = 0.9  # of a layer's outputs, where its inputs have 1
_LOGITS_SPREAD = 3.0  # a trained model's, over the vocabulary
_SHARDS = 4
_GENERATION = {
    "bos_token_id": 151_643,
    "do_sample": True,
    "eos_token_id": [151_645, 151_643],
    "pad_token_id": 151_643,
    "repetition_penalty": 1.0,
    "temperature": 0.7,
    "top_k": 20,
    "top_p": 0.8,
}


def write_checkpoint(path: Path, size: str) -> None:
    """Write configuration, tokenizer, processors and bfloat16 weights, holding one shard in memory at a time."""
    path.mkdir(parents=True)
    (path / "config.json").write_text(json.dumps(SIZES[size], indent=2))
    (path / "generation_config.json").write_text(json.dumps(_GENERATION, indent=2))
    tokenizer = path.with_name("tokenizer")
    tokenizer.mkdir()
    write_small_files(path, write_qwen_tokenizer(tokenizer))
    with torch.device("meta"):
        model = Qwen3VLForConditionalGeneration(Qwen3VLConfig.from_dict(copy.deepcopy(SIZES[size])))
    shapes = {name: weight.shape for name, weight in model.state_dict().items() if name != "lm_head.weight"}
    total = 2 * sum(shape.numel() for shape in shapes.values())
    shards = list(_shards(shapes, total // _SHARDS))
    torch.manual_seed(0)
    files: dict[str, str] = {}
    for number, names in enumerate(shards, start=1):
        file = f"model-{number:05d}-of-{len(shards):05d}.safetensors"
        save_file({name: _weight(name, shapes[name]) for name in names}, path / file, metadata={"format": "pt"})
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


def _weight(name: str, shape: torch.Size) -> torch.Tensor:
    weight = torch.empty(shape, dtype=torch.bfloat16)
    if len(shape) > 1:
        return weight.normal_(0, _SPREAD / shape[1:].numel() ** 0.5)
    if name == "model.language_model.norm.weight":
        return weight.fill_(_LOGITS_SPREAD / _SPREAD)
    return weight.fill_(float(name.endswith(".weight")))


def load_stock(path: Path, picture: Path) -> None:
    """Load a merged checkpoint as anybody would, look at it, and let it say something about a picture."""
    model, found = AutoModelForImageTextToText.from_pretrained(path, dtype="auto", output_loading_info=True)
    assert not any(found.values()), found
    assert model.dtype == torch.bfloat16, model.dtype
    tokenizer = AutoTokenizer.from_pretrained(path)
    coord_ids = tokenizer.convert_tokens_to_ids([f"<|coord_{number}|>" for number in (0, 999)])
    table = model.get_input_embeddings().weight
    assert coord_ids == [151_670, 152_669], coord_ids
    assert len(table) > coord_ids[1], table.shape
    assert model.get_output_embeddings().weight is table

    image = AutoImageProcessor.from_pretrained(path)(images=Image.open(picture), return_tensors="pt")
    content = [{"type": "image"}, {"type": "text", "text": "Detect all objects."}]
    text = tokenizer.apply_chat_template(
        [{"role": "user", "content": content}], tokenize=False, add_generation_prompt=True
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
    verb, first, *folders = sys.argv[1:]
    for folder in map(Path, folders):
        if verb == "write":
            write_checkpoint(folder, first)
        else:
            load_stock(folder, Path(first))
