"""Say whether a run would start, without loading weights: exit code 0 if it would, 2 if not.

    coordexp doctor --config experiments/coco_qwen3vl_4b.yaml
    coordexp doctor boxes --annotations instances_val.json dets.json

The second says in which frame the boxes of a detector's file stand: pixels, fractions, thousandths or pixels of Qwen's
resized images, as xywh, xyxy or cxcywh, by which of them fits the ground truth best. It prints the command that reads
the file right; exit code 0 if COCO's own reading is the one, 2 if not.
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
    add_config(parser)
    parser.add_argument("--annotations", type=Path, help="for boxes: ground truth in COCO's format")
    add_aliases(parser)
    parser.add_argument("--format", choices=("table", "json"), default="table")


def run(options: argparse.Namespace) -> int:
    if options.overrides[:1] == ["boxes"]:
        return _examine_boxes(options)
    if options.annotations is not None or options.aliases is not None:
        raise ConfigError("--annotations belongs to doctor boxes --annotations GT.json FILE; expected boxes and a file")
    with stage_bars():
        from coordexp.cli.views import examination_json, show_examination
        from coordexp.doctor.examine import examine

        found = examine(options.config, options.overrides)
    if options.format == "json":
        show(output_console(), examination_json(found))
    else:
        show_examination(found, output_console(pipe_width=10_000))  # a check is a line there
    return 0 if found.would_start else 2


def _examine_boxes(options: argparse.Namespace) -> int:
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
        said = diagnose(results, truth)
    if said is None:
        raise DataError(
            f"{path}: fewer than {MIN_IMAGES} images of {truth.path} have objects and one of its {len(results)} boxes; "
            "its frame cannot be told"
        )
    detections = detections_of(results, truth, said.best.frame)  # refuses what compare would refuse
    name = path.name.partition(".")[0]
    frame = [] if said.outcome in ("good", "unclear") else ["--frame", f"{name}={said.best.frame}"]
    command = shlex.join(["coordexp", "compare", "--annotations", str(options.annotations), f"{name}={path}", *frame])
    if options.aliases is not None:
        command = f"{command} {shlex.join(['--aliases', str(options.aliases)])}"
    remarks = (*truth.remarks, *results.remarks, *order_remarks(detections, path))
    if options.format == "json":
        plain, best = ({"frame": str(fit.frame), "mean_iou": fit.mean_iou} for fit in (said.plain, said.best))
        found = {"outcome": said.outcome, "as_coco": plain, "best": best, "remarks": remarks, "command": command}
        show(output_console(), json.dumps(found, indent=2))
    else:
        for line in (*remarks, f"{path}: {said.outcome}", said.sentence, command):
            show(output_console(), line)
    return 0 if said.outcome == "good" else 2
