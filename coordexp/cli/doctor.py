"""Say whether a run would start, without loading weights. The exit code is 0 if it would, 2 if not.

    coordexp doctor --config experiments/coco_qwen3vl_4b.yaml
    coordexp doctor boxes --annotations instances_val.json dets.json

The second command says in which frame the boxes of a detector's file stand: pixels, fractions, thousandths or pixels of
Qwen's resized images, as xywh, xyxy or cxcywh. It takes the frame that fits the ground truth best, and prints the
command that reads the file right. The exit code is 0 if that is COCO's own frame, 2 if not.
"""

import argparse
import json
import shlex
from pathlib import Path

from coordexp.cli.arguments import add_aliases, add_config, read_aliases
from coordexp.cli.console import output_console, show, stage_bars
from coordexp.errors import ConfigError, DataError

HELP = "whether a run would start, without loading weights; boxes: how a file of detections is to be read"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``coordexp doctor``."""
    add_config(parser)
    parser.add_argument("--annotations", type=Path, help="for boxes: ground truth in COCO's format")
    add_aliases(parser)
    parser.add_argument("--format", choices=("table", "json"), default="table")


def run(options: argparse.Namespace) -> int:
    """Examine an experiment, or the boxes of a file; return 0 if all is well, 2 if not."""
    if options.overrides[:1] == ["boxes"]:
        return _examine_boxes(options)
    if options.annotations is not None or options.aliases is not None:
        raise ConfigError("--annotations belongs to doctor boxes --annotations GT.json FILE; expected boxes and a file")
    with stage_bars():
        from coordexp.cli.views import examination_json, show_examination
        from coordexp.doctor.examine import examine

        examination = examine(options.config, options.overrides)
    if options.format == "json":
        show(output_console(), examination_json(examination))
    else:
        # So wide that no sentence is wrapped: in a pipe each check is one line, which grep finds.
        show_examination(examination, output_console(pipe_width=10_000))
    return 0 if examination.would_start else 2


def _examine_boxes(options: argparse.Namespace) -> int:
    """Say in which frame the boxes of a file stand, and print the command that reads them right."""
    from coordexp.detection.detections import detections_of, order_remarks
    from coordexp.detection.forms.results import read_results
    from coordexp.detection.ground_truth import read_ground_truth
    from coordexp.doctor.boxes import MIN_IMAGES, diagnose

    if options.annotations is None or len(options.overrides) != 2:
        raise ConfigError("expected doctor boxes --annotations GT.json FILE, with one file")
    path = Path(options.overrides[1])
    with stage_bars():
        truth = read_ground_truth(options.annotations)
        results = read_results(path, truth, aliases=read_aliases(options.aliases))
        diagnosis = diagnose(results, truth)
    if diagnosis is None:
        raise DataError(
            f"{path}: fewer than {MIN_IMAGES} images of {truth.path} have objects and one of its {len(results)} boxes; "
            "its frame cannot be told"
        )
    detections = detections_of(results, truth, diagnosis.best.frame)  # refuses what compare would refuse
    remarks = (*truth.remarks, *results.remarks, *order_remarks(detections, path))

    name = path.name.partition(".")[0]
    words = ["coordexp", "compare", "--annotations", str(options.annotations), f"{name}={path}"]
    if diagnosis.outcome in ("better", "far better"):
        words += ["--frame", f"{name}={diagnosis.best.frame}"]
    if options.aliases is not None:
        words += ["--aliases", str(options.aliases)]
    command = shlex.join(words)

    if options.format == "json":
        document = {
            "outcome": diagnosis.outcome,
            "as_coco": {"frame": str(diagnosis.plain.frame), "mean_iou": diagnosis.plain.mean_iou},
            "best": {"frame": str(diagnosis.best.frame), "mean_iou": diagnosis.best.mean_iou},
            "remarks": remarks,
            "command": command,
        }
        show(output_console(), json.dumps(document, indent=2))
    else:
        for line in (*remarks, f"{path}: {diagnosis.outcome}", diagnosis.sentence, command):
            show(output_console(), line)
    return 0 if diagnosis.outcome == "good" else 2
