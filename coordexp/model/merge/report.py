"""What a merge did, as a file and as lines for a person."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from coordexp.errors import CheckpointError
from coordexp.files import write_json
from coordexp.model.checkpoint.adapter import ADAPTER_CONFIG
from coordexp.model.checkpoint.directory import read_json
from coordexp.model.merge.parity import Agreement
from coordexp.shipped import command

REPORT_FILE = "merge_report.json"

MergeFormat = Literal["hf", "peft-tokens"]

RELATIVE_TO = "max_abs_logit, the largest absolute logit of the model before it was merged"


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


def write_report(
    directory: Path,
    agreement: Agreement,
    *,
    dtype: str,
    tie_word_embeddings: bool,
    num_merged_layers: int,
    num_offset_rows: int,
    num_unused_weights: int = 0,
    format: MergeFormat = "hf",
) -> MergeReport:
    """Write the report of a merge whose result agrees, and return it.

    Raises:
        CheckpointError: if it does not agree.
    """
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
    if report.num_unused_weights:
        rows.append(("left behind", f"{report.num_unused_weights:,} of the base's tensors, unknown to its model"))
    return rows


def next_command(report: MergeReport, output: Path) -> str:
    """Return what to type to use the result."""
    if report.format == "hf":
        return command("evaluate", "--model", output, "--annotations", "instances.json", "--images", "DIR")
    base = read_json(output / ADAPTER_CONFIG)["base_model_name_or_path"]
    return f'PeftModel.from_pretrained(AutoModelForImageTextToText.from_pretrained("{base}"), "{output}")'
