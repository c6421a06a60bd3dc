"""Peak memory of ``expand-vocab`` and ``merge`` on a checkpoint of true vocabulary, against "largest shard + 2 GB".

``python tests/benchmarks/bench_merge.py [LAYERS] [tied|untied] [lora|dora]`` (default 7 tied dora: 1.5 GB of random
bfloat16 weights, at most 4 GB of disk, untied 6, removed afterwards). Each step runs in its own process. The peak is
``ru_maxrss``: it counts every resident page, those of mapped files included, although the system takes these back when
it needs them; "own" leaves them out. Exit code 1 if a peak is over the limit.
"""

import json
import resource
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

GB = 10**9
NEEDED_BYTES = 6 * GB
ALLOWANCE_BYTES = 2 * GB
HIDDEN_SIZE = 2048
TOKENIZER_ENTRIES = 151_669
MODEL_ROWS = 151_936
POLL_SECONDS = 0.01


def make(root: Path, num_layers: int, tied: bool, tuning: str) -> None:
    """Write ``root/base`` without coord tokens, and ``root/adapter`` for the expanded base."""
    import torch
    from transformers import Qwen3VLForConditionalGeneration

    from coordexp.coord_tokens.offset_adapter import install_coord_offset_adapter
    from coordexp.coord_tokens.vocab import expand_vocab
    from coordexp.model.checkpoint.adapter import save_adapter
    from coordexp.model.lora import apply_tuning
    from coordexp.model.tiny.parts import build_image_processor

    tokenizer = full_size_tokenizer()
    torch.manual_seed(0)
    torch.set_default_dtype(torch.bfloat16)
    model = Qwen3VLForConditionalGeneration(configuration(tokenizer, num_layers, tied))
    torch.set_default_dtype(torch.float32)
    base = root / "base"
    model.save_pretrained(base, max_shard_size="500MB")
    tokenizer.save_pretrained(base)
    build_image_processor().save_pretrained(base)
    vocab = expand_vocab(model, tokenizer, init="numeric")
    install_coord_offset_adapter(model, coord_ids=vocab.coord_ids, dtype="float32")
    adapted = apply_tuning(model, tuning=tuning, rank=16, alpha=32.0, dropout=0.0, vision=True, seed=0)
    with torch.no_grad():
        for parameter in adapted.parameters():
            if parameter.requires_grad:
                parameter += 0.02 * torch.randn(parameter.shape, dtype=parameter.dtype)
    save_adapter(adapted, root / "adapter")


def full_size_tokenizer():
    """Return the small tokenizer, filled up to Qwen's 151,669 entries."""
    from transformers.models.qwen2.tokenization_qwen2 import Qwen2Tokenizer

    from coordexp.model.tiny.parts import EMBEDDED_TEMPLATE, SPECIAL_TOKENS, build_tokenizer

    bpe = json.loads(build_tokenizer().backend_tokenizer.to_str())["model"]
    num_filled = TOKENIZER_ENTRIES - len(SPECIAL_TOKENS)
    vocab = bpe["vocab"] | {f"filler{i}": i for i in range(len(bpe["vocab"]), num_filled)}
    merges = [tuple(pair) for pair in bpe["merges"]]
    tokenizer = Qwen2Tokenizer(vocab=vocab, merges=merges, eos_token="<|im_end|>", pad_token="<|endoftext|>")
    tokenizer.add_tokens(list(SPECIAL_TOKENS), special_tokens=True)
    tokenizer.chat_template = EMBEDDED_TEMPLATE
    assert len(tokenizer) == TOKENIZER_ENTRIES
    return tokenizer


def configuration(tokenizer, num_layers: int, tied: bool):
    """Return a narrow Qwen3-VL-2B: its vocabulary and text layers, fewer of them, and a short vision tower."""
    from transformers import Qwen3VLConfig

    ids = tokenizer.get_vocab()
    text = {
        "vocab_size": MODEL_ROWS,
        "hidden_size": HIDDEN_SIZE,
        "intermediate_size": 6144,
        "num_hidden_layers": num_layers,
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": 5e6,
            "mrope_section": [24, 20, 20],
            "mrope_interleaved": True,
        },
        "tie_word_embeddings": tied,
        "pad_token_id": ids["<|endoftext|>"],
    }
    vision = {
        "depth": 4,
        "hidden_size": 1024,
        "intermediate_size": 4096,
        "num_heads": 16,
        "patch_size": 8,
        "out_hidden_size": HIDDEN_SIZE,
        "num_position_embeddings": 144,
        "deepstack_visual_indexes": [1],
    }
    names = {"image": "<|image_pad|>", "video": "<|video_pad|>"}
    marks = {"vision_start": "<|vision_start|>", "vision_end": "<|vision_end|>"}
    token_ids = {f"{key}_token_id": ids[token] for key, token in (names | marks).items()}
    return Qwen3VLConfig(text_config=text, vision_config=vision, tie_word_embeddings=tied, **token_ids)


def measured(root: Path, *arguments: str) -> tuple[int, int, float]:
    """Run a verb in its own process and return its peak, its peak without mapped files, and its seconds."""
    started = time.monotonic()
    child = subprocess.Popen([sys.executable, __file__, "run", *arguments], cwd=root, stdout=subprocess.PIPE, text=True)
    own = [0]
    poll = threading.Thread(target=watch, args=(child, own))
    poll.start()
    assert child.stdout is not None
    *lines, last = child.stdout.read().splitlines()
    poll.join()
    if child.wait():
        raise SystemExit(f"{arguments[0]} failed")
    print("\n".join(f"    {line}" for line in lines))
    return int(last), own[0], time.monotonic() - started


def watch(child: subprocess.Popen[str], own: list[int]) -> None:
    """Keep the largest amount of memory that is no mapped file."""
    while child.poll() is None:
        try:
            status = Path(f"/proc/{child.pid}/status").read_text()
        except OSError:
            return
        resident = [int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith("RssAnon:")]
        own[0] = max([own[0], *resident])
        time.sleep(POLL_SECONDS)


def run(arguments: list[str]) -> None:
    """Run a verb, then print the peak of this process in bytes."""
    from coordexp.cli.main import main as cli

    code = cli(arguments)
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)
    sys.exit(code)


def main(num_layers: int = 7, tie: str = "tied", tuning: str = "dora") -> int:
    """Print the peaks and whether they are within the limit."""
    if shutil.disk_usage(tempfile.gettempdir()).free < NEEDED_BYTES:
        print(f"{tempfile.gettempdir()}: less than {NEEDED_BYTES / GB:.0f} GB free; set TMPDIR to another place")
        return 1
    with tempfile.TemporaryDirectory(prefix="bench_merge.") as scratch:
        root = Path(scratch)
        subprocess.run([sys.executable, __file__, "make", scratch, str(num_layers), tie, tuning], check=True)
        sizes = [file.stat().st_size for file in (root / "base").glob("*.safetensors")]
        limit = max(sizes) + ALLOWANCE_BYTES
        print(f"{tie} base of {sum(sizes) / GB:.2f} GB in {len(sizes)} shards (float32: twice that), {tuning}")
        print(f"limit: largest shard {max(sizes) / GB:.2f} GB + {ALLOWANCE_BYTES / GB:.2f} GB = {limit / GB:.2f} GB")
        peaks: list[int] = []
        for verb in (
            ["expand-vocab", "--model", "base", "--output", "expanded"],
            ["merge", "--adapter", "adapter", "--output", "merged", "--base", "base"],
        ):
            peak, own, seconds = measured(root, *verb)
            peaks.append(peak)
            print(f"{verb[0]:<13} peak {peak / GB:.2f} GB, own {own / GB:.2f} GB, {seconds:.0f} s")
            shutil.rmtree(root / verb[4])
    print("within the limit" if max(peaks) <= limit else "OVER THE LIMIT")
    return 0 if max(peaks) <= limit else 1


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["make", folder, layers, tie, tuning]:
            make(Path(folder), int(layers), tie == "tied", tuning)
        case ["run", *verb]:
            run(verb)
        case [layers, *rest]:
            sys.exit(main(int(layers), *rest))
        case _:
            sys.exit(main())
