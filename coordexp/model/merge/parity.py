"""Compare the logits of a merged checkpoint on disk with those of the model it was made from, and report it."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from torch import Tensor, nn
from transformers import PreTrainedTokenizerBase

from coordexp.coord_tokens.codec import NUM_BINS, int_to_token
from coordexp.coord_tokens.vocab import STRUCTURE_TOKENS
from coordexp.data.dataset import DEFAULT_PROMPT
from coordexp.data.sources.shapes import CATEGORIES, draw_scene
from coordexp.errors import CheckpointError
from coordexp.files import write_json
from coordexp.model.checkpoint.adapter import ADAPTER_CONFIG, AdapterInfo
from coordexp.model.checkpoint.directory import read_json
from coordexp.model.checkpoint.offload import offload
from coordexp.model.checkpoint.rewrite import Progress, silent
from coordexp.model.checkpoint.stored_model import StoredModel
from coordexp.model.processor import Message, Processor
from coordexp.shipped import command

REPORT_FILE = "merge_report.json"

MergeFormat = Literal["hf", "peft-tokens"]

RELATIVE_TO = "max_abs_logit, the largest absolute logit of the model before it was merged"

Inputs = Mapping[str, Tensor]  # of one forward pass

# The same adapter merged in float32 and in bfloat16, evaluated on the same images.
_BFLOAT16_COST = "rounding to bfloat16 may cost .002 to .004; coordexp merge --dtype float32 keeps what was trained"

_CPU = torch.device("cpu")
_BIN_STRIDE = 61  # 17 bins over the whole range, shared with no power of two
# Of the largest logit. Rounding of the stored weights, then of every activation: bfloat16 keeps 8 bits, float16 11.
_STORED_TOLERANCE = {"float32": 1e-4, "float16": 5e-3, "bfloat16": 2e-2}
_COMPUTE_TOLERANCE = {torch.float32: 1e-4, torch.float16: 1e-2, torch.bfloat16: 5e-2}


@dataclass(frozen=True)
class Agreement:
    """How well two models agree.

    Attributes:
        max_abs_diff: largest difference of a logit; NaN if one is no number.
        max_abs_logit: largest logit of the model before it was merged.
        relative_tolerance: what the difference may be of that.
    """

    max_abs_diff: float
    max_abs_logit: float
    relative_tolerance: float

    @property
    def tolerance(self) -> float:
        """What ``max_abs_diff`` has to stay below."""
        return self.relative_tolerance * self.max_abs_logit

    @property
    def holds(self) -> bool:
        """Whether the difference is a number within the tolerance; NaN never is."""
        return math.isfinite(self.max_abs_diff) and self.max_abs_diff <= self.tolerance


@torch.no_grad()
def logits_of(model: nn.Module, samples: Sequence[Inputs], *, device: torch.device = _CPU) -> list[Tensor]:
    """Return the float32 logits ``[B, L, V]`` of each sample on the CPU; the model's training mode is restored."""
    was_training = model.training
    model.eval()
    try:
        inputs = [{name: tensor.to(device) for name, tensor in sample.items()} for sample in samples]
        return [model(**one, use_cache=False).logits.float().cpu() for one in inputs]
    finally:
        model.train(was_training)


def logits_from_disk(
    stored: StoredModel,
    samples: Sequence[Inputs],
    *,
    adapter: AdapterInfo | None = None,
    tokenizer: PreTrainedTokenizerBase | None = None,
    dtype: torch.dtype = torch.float32,
    device: torch.device = _CPU,
    progress: Progress = silent,
    stage: str = "logits",
) -> list[Tensor]:
    """Return the logits of a checkpoint as plain transformers would load it, without ever holding it whole.

    Args:
        stored: the checkpoint.
        samples: model inputs.
        adapter: a saved adapter to put on it.
        tokenizer: of the checkpoint, if there is an adapter.
        dtype: in which to compute. In half precision the rounding of activations would hide what a merge did, or
            look like it.
        device: where to compute; with an adapter the CPU.
        progress: called for every weight that is read.
        stage: what to call the work there.

    Raises:
        CheckpointError: if the adapter does not fit the checkpoint.
        TokenizerError: if it is for another vocabulary.
    """
    num_read = 0

    def on_read() -> None:
        nonlocal num_read
        num_read += 1
        progress(stage, min(num_read, total), total)

    model = offload(stored, adapter=adapter, tokenizer=tokenizer, dtype=dtype, device=device, on_read=on_read)
    total = model.num_reads * len(samples)
    logits = logits_of(model.model, samples, device=device)
    progress(stage, total, total)  # a sample without a picture reads fewer
    return logits


def compare(
    before: Sequence[Tensor], after: Sequence[Tensor], *, stored: str, computed: torch.dtype = torch.float32
) -> Agreement:
    """Hold the logits of a merged checkpoint against those of the model it was made from.

    Args:
        before: of the model, for each sample.
        after: of the checkpoint, for the same samples.
        stored: dtype of the checkpoint's weights, by name.
        computed: dtype in which both ran.

    Raises:
        CheckpointError: if the model's own logits are no numbers, or the checkpoint's have another shape.
    """
    if not all(torch.isfinite(one).all() for one in before):
        raise CheckpointError(
            "the model itself gives logits that are no numbers, before anything is merged; train it again, or take an "
            "earlier checkpoint"
        )
    for one, other in zip(before, after, strict=True):
        if one.shape != other.shape:
            raise CheckpointError(
                f"the merged checkpoint gives logits of shape {tuple(other.shape)}, expected {tuple(one.shape)}"
            )
    differences = [(one - other).abs().max() for one, other in zip(before, after, strict=True)]
    return Agreement(
        max_abs_diff=float(torch.stack(differences).max()),  # of which NaN is the largest
        max_abs_logit=max(float(one.abs().max()) for one in before),
        relative_tolerance=max(_STORED_TOLERANCE[stored], _COMPUTE_TOLERANCE[computed]),
    )


def default_samples(processor: Processor) -> list[Inputs]:
    """Return a generated picture with a prompt and an answer: in coord tokens if there are any, else in digits."""
    picture, shapes = draw_scene(np.random.default_rng(7))
    messages: list[Message] = [
        {"role": "user", "content": [{"type": "image"}, {"type": "text", "text": DEFAULT_PROMPT}]},
    ]
    prompt = processor.apply_chat_template(messages, add_generation_prompt=True)
    known = processor.tokenizer.get_vocab()
    markers = [token for tokens in STRUCTURE_TOKENS.values() for token in tokens if token is not None]
    coords = [int_to_token(k) for k in range(0, NUM_BINS, _BIN_STRIDE)]
    answer = [*(token for token in markers if token in known), CATEGORIES[shapes[0].category]]
    answer += [token for token in coords if token in known] or ["034 340 560 789"]
    answer += ["<|im_end|>"]
    return [processor(text=prompt + "".join(answer), images=picture)]


@dataclass(frozen=True)
class MergeReport:
    """What a merge did.

    Attributes:
        max_abs_logit_diff: largest difference of a logit, model against merged checkpoint.
        tolerance: what it had to stay below.
        relative_tolerance: ``tolerance`` as a part of what ``tolerance_is_relative_to`` names.
        tolerance_is_relative_to: in words.
        max_abs_logit: the largest logit, for scale.
        tie_word_embeddings: whether the result shares embedding and head.
        dtype: of the result's weights.
        num_merged_layers: linear layers that changed.
        num_offset_rows: embedding rows that changed.
        num_unused_weights: tensors of the base that its model has no place for, and that stayed behind.
        format: a whole checkpoint, or an adapter of stock PEFT.
    """

    max_abs_logit_diff: float
    tolerance: float
    relative_tolerance: float
    max_abs_logit: float
    tie_word_embeddings: bool
    dtype: str
    num_merged_layers: int
    num_offset_rows: int
    num_unused_weights: int = 0
    format: MergeFormat = "hf"
    tolerance_is_relative_to: str = RELATIVE_TO

    @property
    def cost(self) -> str:
        """What rounding the merged weights may cost, in words; empty where nothing is rounded to less than float32."""
        return _BFLOAT16_COST if self.dtype == "bfloat16" and self.format == "hf" else ""


def write_report(
    directory: Path,
    before: Sequence[Tensor],
    after: Sequence[Tensor],
    *,
    dtype: str,
    computed: torch.dtype = torch.float32,
    tie_word_embeddings: bool,
    num_merged_layers: int,
    num_offset_rows: int,
    num_unused_weights: int = 0,
    format: MergeFormat = "hf",
) -> MergeReport:
    """Compare logits as :func:`compare` does, and write the report of a merge whose result agrees.

    Raises:
        CheckpointError: if it does not agree.
    """
    agreement = compare(before, after, stored=dtype, computed=computed)
    if not agreement.holds:
        raise CheckpointError(
            f"the merged checkpoint disagrees with the model by {agreement.max_abs_diff:.3g} in a logit (tolerance "
            f"{agreement.tolerance:.3g}); nothing was written. Is the base the one that the adapter was trained on?"
        )
    report = MergeReport(
        max_abs_logit_diff=agreement.max_abs_diff,
        tolerance=agreement.tolerance,
        relative_tolerance=agreement.relative_tolerance,
        max_abs_logit=agreement.max_abs_logit,
        tie_word_embeddings=tie_word_embeddings,
        dtype=dtype,
        num_merged_layers=num_merged_layers,
        num_offset_rows=num_offset_rows,
        num_unused_weights=num_unused_weights,
        format=format,
    )
    write_json(directory / REPORT_FILE, asdict(report), indent=2)
    return report


def report_rows(report: MergeReport) -> list[tuple[str, str]]:
    """Return a report as names and values for the screen."""
    relative = f"{report.relative_tolerance:g} of {report.max_abs_logit:.3g}, the largest logit"
    rows = [
        ("largest difference of a logit", f"{report.max_abs_logit_diff:.2e}"),
        ("tolerance", f"{report.tolerance:.2e} ({relative})"),
        ("dtype", report.dtype),
        ("embedding and head", "tied" if report.tie_word_embeddings else "untied"),
        ("layers merged" if report.format == "hf" else "layers adapted", f"{report.num_merged_layers:,}"),
        ("rows changed", f"{report.num_offset_rows:,}"),
    ]
    if report.cost:
        rows.append(("AP", report.cost))
    if report.num_unused_weights:
        rows.append(("left behind", f"{report.num_unused_weights:,} of the base's tensors, unknown to its model"))
    return rows


def next_command(report: MergeReport, output: Path) -> str:
    """Return what to type to use the result."""
    if report.format == "hf":
        return command("evaluate", "--model", output, "--annotations", "instances.json", "--images", "DIR")
    base = read_json(output / ADAPTER_CONFIG)["base_model_name_or_path"]
    return f'PeftModel.from_pretrained(AutoModelForImageTextToText.from_pretrained("{base}"), "{output}")'
