"""Packing with flash_attention_2: whether the samples of a row read each other, in bfloat16 on CUDA.

The configuration refuses `data.packing: true` with `model.attn_implementation: flash_attention_2` until this file has
passed on a machine with the package: run it there, and drop the refusal (`coordexp/config/schema/root.py`) if it does.
"""

import importlib.util
from itertools import pairwise

import pytest
import torch

from coordexp.config.schema import ExperimentConfig
from coordexp.data.batch import collate_packed, rope_positions
from coordexp.model.tiny.parts import build_model, build_tokenizer, save_base
from coordexp.train.forward import model_inputs
from coordexp.train.setup.components import build_components
from coordexp.train.setup.prepare import prepare_experiment

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

DEVICE = "cuda"
ATTENTION = [
    "sdpa",  # shown exact on the CPU: what bfloat16 and other shapes of a kernel do to the numbers
    pytest.param(
        "flash_attention_2",
        marks=pytest.mark.skipif(
            importlib.util.find_spec("flash_attn") is None,
            reason="needs the package flash-attn, which is not installed",
        ),
    ),
]


@pytest.fixture(scope="module", params=ATTENTION)
def parts(request, tmp_path_factory):
    """A bfloat16 model with adapters that are not at zero."""
    root = tmp_path_factory.mktemp("packing")
    tokenizer = build_tokenizer()
    save_base(root / "base", build_model(tokenizer), tokenizer)
    config = ExperimentConfig.model_validate(
        {
            "experiment": {"name": "packing", "runs_dir": str(root)},
            "model": {"path": str(root / "base"), "dtype": "bfloat16", "attn_implementation": request.param},
            "data": {"shapes": {"num_train": 8, "num_val": 2}},
            "training": {"precision": "bfloat16", "tuning": "dora", "optimizer": "multimodal_coord_offset"},
            "custom": {"coord_offset": {"enabled": True}},
        }
    )
    prepare_experiment(config)
    built = build_components(config)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in built.model.parameters():
            if parameter.requires_grad:
                parameter += 0.05 * torch.randn(parameter.shape, generator=generator)
    built.model.to(DEVICE).eval()
    return built


def _samples(parts):
    dataset = parts.encoding.dataset(parts.train.samples)
    return [dataset[index] for index in range(4)]


def _packed(parts, samples, *, rows: int = 4):
    """Return the inputs of one row; with 3 rows of positions the model cannot know that it is packed."""
    keys = {"image_token_id": parts.encoding.prompt.image_token_id, "merge_size": 2}
    batch = collate_packed(samples, **keys)
    inputs = model_inputs(batch, parts.encoding.image_spec, dtype=torch.bfloat16)
    if rows == 3:
        own = [torch.from_numpy(rope_positions(sample, **keys)) for sample in samples]
        inputs["position_ids"] = torch.cat(own, dim=1)[:, None]
    return {name: value.to(DEVICE) for name, value in inputs.items()}


def _logits(parts, inputs):
    with torch.autocast(DEVICE, dtype=torch.bfloat16):
        return parts.model(**inputs, use_cache=False).logits[0].float()


def _gap(found, alone, samples) -> float:
    """Largest difference in the second and later samples; the first has none before it."""
    ends = torch.tensor([sample.length for sample in samples]).cumsum(0).tolist()
    return max((found[start:end] - alone[start:end]).abs().max().item() for start, end in pairwise(ends))


def test_a_packed_row_is_its_samples_alone(parts):
    """The rounding of bfloat16 is far below a leak, which the same measure sees."""
    samples = _samples(parts)
    with torch.no_grad():
        alone = torch.cat([_logits(parts, _packed(parts, [sample])) for sample in samples])
        packed, leaking = (_gap(_logits(parts, _packed(parts, samples, rows=rows)), alone, samples) for rows in (4, 3))
    assert leaking > 0.3
    assert packed < 0.1 * leaking


def _gradients(parts, logits):
    parts.model.zero_grad()
    (logits.logsumexp(-1) - logits[:, 7]).sum().backward()
    return {name: p.grad.float().clone() for name, p in parts.model.named_parameters() if p.grad is not None}


def test_gradients_are_those_of_the_samples_alone(parts):
    samples = _samples(parts)
    packed, leaking = (_gradients(parts, _logits(parts, _packed(parts, samples, rows=rows))) for rows in (4, 3))
    alone = _gradients(parts, torch.cat([_logits(parts, _packed(parts, [sample])) for sample in samples]))
    assert any("visual" in name for name in alone)

    def difference(found):
        assert found.keys() == alone.keys()
        return sum((found[name] - alone[name]).norm() for name in alone) / sum(g.norm() for g in alone.values())

    assert difference(leaking) > 0.1
    assert difference(packed) < 0.2 * difference(leaking)
