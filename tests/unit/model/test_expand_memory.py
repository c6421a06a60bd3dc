"""Peak memory of ``expand-vocab`` on a checkpoint with tables of true size: largest shard plus 2 GB."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from transformers import Qwen3VLConfig, Qwen3VLForConditionalGeneration

from coordexp.model.checkpoint.stored_model import EMBEDDING
from coordexp.model.checkpoint.weights import StoredWeights
from tests.support.real_vocabulary import COORD_IDS, NUM_ENTRIES, published_config, write_small_files

_COMMAND = """
import sys
from pathlib import Path

def peak():
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) * 1024

from coordexp.cli.main import main
import coordexp.model.expand
before = peak()
code = main(["expand-vocab", "--model", sys.argv[1], "--output", sys.argv[2]])
print("PEAK", before, peak())
sys.exit(code)
"""


def _write_wide(path: Path, tokenizer: Path) -> Path:
    """Write a checkpoint as wide as the 4B model, of one text layer, in one file of about 1 GB."""
    path.mkdir()
    vision = {"depth": 1, "hidden_size": 1024, "intermediate_size": 4096, "deepstack_visual_indexes": [0]}
    config = published_config(hidden=2560, layers=1, heads=32, intermediate=9728, vision=vision, tied=True)
    (path / "config.json").write_text(json.dumps(config))
    with torch.device("meta"):
        model = Qwen3VLForConditionalGeneration(Qwen3VLConfig.from_dict(config))
    model.tie_weights()
    generator = torch.Generator().manual_seed(0)
    tensors = {
        name: (torch.rand(p.shape, generator=generator) - 0.5).to(torch.bfloat16)
        for name, p in model.named_parameters()
    }
    save_file(tensors, path / "model.safetensors", {"format": "pt"})
    write_small_files(path, tokenizer)
    return path


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.skipif(not Path("/proc/self/status").is_file(), reason="peak memory is read from /proc")
def test_peak_memory(qwen_tokenizer, tmp_path):
    source, output = _write_wide(tmp_path / "source", qwen_tokenizer), tmp_path / "out"
    shard = (source / "model.safetensors").stat().st_size
    assert 0.9e9 < shard < 1.3e9
    command = [sys.executable, "-c", _COMMAND, str(source), str(output)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=500)
    before, peak = map(int, done.stdout.split("PEAK ")[1].split())
    print(f"shard {shard / 1e9:.2f} GB, libraries {before / 1e9:.2f} GB, peak {peak / 1e9:.2f} GB")
    assert before < peak < shard + 2e9

    stored, made = (StoredWeights.of(place).read(EMBEDDING) for place in (source, output))
    assert made.shape == (COORD_IDS.stop, 2560)
    assert torch.equal(made[:NUM_ENTRIES], stored[:NUM_ENTRIES])
    digits, coords = stored[15:25].float(), made[COORD_IDS.start : COORD_IDS.stop].float()
    assert torch.equal(coords[50], digits[0])
    assert torch.equal(coords[950], digits[9])
    middle = (0.5 * digits[3] + 0.5 * digits[4]).to(torch.bfloat16).float()
    assert torch.equal(coords[400], middle)
