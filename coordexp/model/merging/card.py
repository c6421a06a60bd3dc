"""The card of a merged checkpoint, ``README.md``: what it is, how good it was, and how to load and serve it.

A run knows its data, its group and its figures. A merge by hand knows the base and what the adapter says of its
training. What is not known is left out.
"""

import json
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from coordexp.coord_tokens.codec import NUM_BINS
from coordexp.coord_tokens.vocab import STRUCTURE_TOKENS, Structure
from coordexp.files import write_text
from coordexp.metrics import BoxKind
from coordexp.model.checkpoint.directory import EMBEDDED, is_hub_id
from coordexp.model.checkpoint.trained_with import TrainedWith
from coordexp.model.merging.proof import MergeReport

CARD_FILE = "README.md"

_READINGS: Mapping[BoxKind, str] = {
    "expected": "by the mean of each coordinate's distribution (`expected_px` of `coordexp predict`)",
    "argmax": "by the most likely bin of each coordinate (`argmax_px` of `coordexp predict`)",
}


@dataclass(frozen=True)
class TrainingFacts:
    """What is known of the training behind a checkpoint. A field is "" or None if it is not known.

    Attributes:
        base: the checkpoint that training began with: ``embedded``, a path or a hub id.
        named_base: the name that the adapter has for it, if that is another one.
        revision: of a hub id.
        run: experiment, group and seed, as a heading.
        group: the group, and the terms of its loss.
        data: the data of training and evaluation.
        reading: how the group's boxes are read.
        figures: COCO AP and other figures as text, by decoding; empty if nothing was measured.
        served: a sentence on the AP that a client of a server gets.
        structure: the markers of an object, if boxes are coord tokens.
        trained_with: prompt and image sizes.
    """

    base: str = ""
    named_base: str = ""
    revision: str | None = None
    run: str = ""
    group: str = ""
    data: str = ""
    reading: BoxKind | None = None
    figures: Mapping[str, str] = field(default_factory=dict[str, str])
    served: str = ""
    structure: Structure | None = None
    trained_with: TrainedWith | None = None


def write_card(directory: Path, facts: TrainingFacts, report: MergeReport) -> None:
    """Write the card of a merged checkpoint into its folder."""
    write_text(directory / CARD_FILE, card_text(facts, report))


def card_text(facts: TrainingFacts, report: MergeReport) -> str:
    """Return the card of a checkpoint, in Markdown."""
    rows = {
        "base": _base(facts),
        "data": facts.data,
        "group": facts.group,
        "boxes are read": "" if facts.reading is None else _READINGS[facts.reading],
        **{f"COCO AP, {decoding} decoding": value for decoding, value in facts.figures.items()},
        "AP as served": facts.served,
        "weights": f"{report.dtype}; {report.sentence}",
        "left behind": report.left_behind,
    }
    if facts.trained_with is not None:
        rows["prompt"] = f"`{_cell(facts.trained_with.prompt)}`"
        rows["pictures"] = f"of at most {facts.trained_with.max_pixels:,} pixels, larger ones are shrunk"
    title = facts.run or "A merged checkpoint"
    sections = [_front_matter(facts), f"# {title}\n", f"{_sentence(facts)}\n", _table(rows), _use(facts, report)]
    return "\n".join(sections)


def _sentence(facts: TrainingFacts) -> str:
    if facts.trained_with is None:  # the adapter of another trainer
        return "A vision-language model into which coordexp merged an adapter."
    return (
        "A vision-language model that answers a picture with the objects in it, a description and a box each. It was\n"
        "fine-tuned with coordexp, and knows what its training data hold."
    )


def _front_matter(facts: TrainingFacts) -> str:
    """Return what the hub reads of a card. A base that is a local path would mean nothing there."""
    lines = ["library_name: transformers", "pipeline_tag: image-text-to-text", "tags: [object-detection, coordexp]"]
    if facts.base and facts.base != EMBEDDED and is_hub_id(facts.base):
        lines.append(f"base_model: {json.dumps(facts.base)}")
    return "\n".join(["---", *lines, "---"])


def _base(facts: TrainingFacts) -> str:
    if not facts.base:
        return ""
    if facts.base == EMBEDDED:
        return "the small model that comes with coordexp"
    revision = f" at revision `{_cell(facts.revision)}`" if facts.revision else ""
    named = f" (the adapter names `{_cell(facts.named_base)}`)" if facts.named_base else ""
    return f"`{_cell(facts.base)}`{revision}{named}"


def _table(rows: Mapping[str, str]) -> str:
    """Return a table of the rows that are not empty."""
    lines = ["| | |", "|---|---|"]
    for name, value in rows.items():
        if value:
            is_escaped = "`" in value
            lines.append(f"| {name} | {value if is_escaped else _cell(value)} |")
    return "\n".join([*lines, ""])


def _cell(text: str) -> str:
    """Return text for one cell. A line break or a bar would end the cell, a backtick would end quoted code."""
    return " ".join(text.split()).replace("|", "\\|").replace("`", "'")


def _use(facts: TrainingFacts, report: MergeReport) -> str:
    """Return how to load the checkpoint, how to serve it, and how to read its answers."""
    use = "" if facts.trained_with is None else "To use it: `coordexp predict --model . PICTURE`. "
    serve = "vllm serve ."
    if report.template:
        serve += f" --default-chat-template-kwargs {shlex.quote(json.dumps(report.template))}"
    lines = [
        'To load it, in this folder (`coordexp.model.load(".")` gives processor and coordinate ids too):\n',
        "```python",
        "from transformers import AutoModelForImageTextToText\n",
        'model = AutoModelForImageTextToText.from_pretrained(".", dtype="auto")',
        "```\n",
        f"{use}To serve it:\n",
        "```console",
        serve,
        "```",
    ]
    if facts.structure is not None:
        start, box, end = STRUCTURE_TOKENS[facts.structure]
        lines += [
            "",
            "An object of an answer is, with special tokens kept (`skip_special_tokens=False`):\n",
            "```text",
            f"{start}description{box or ''}<|coord_x1|><|coord_y1|><|coord_x2|><|coord_y2|>{end}",
            "```\n",
            f"Each number is one of 0 to {NUM_BINS - 1}, in thousandths of the picture's width (x) or height (y).",
        ]
    return "\n".join([*lines, ""])
