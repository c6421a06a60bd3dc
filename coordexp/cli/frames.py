"""Arguments that say in which frame files of detections stand, and the check that nothing else fits them better."""

import argparse
import shlex
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from coordexp.errors import ComparisonError, ConfigError

if TYPE_CHECKING:
    from coordexp.detection.detections import Results
    from coordexp.detection.frames import Frame
    from coordexp.detection.ground_truth import GroundTruth

_FEWEST_IMAGES = 10
"""From a handful of images no frame can be told."""


def add_frame(parser: argparse.ArgumentParser) -> None:
    """Add ``--frame``."""
    parser.add_argument(
        "--frame",
        action="append",
        default=[],
        metavar="[NAME=]FRAME",
        help="how a detector's files write boxes, such as norm1000:xyxy, repeatable; coordexp doctor boxes finds it",
    )


def named_frames(texts: Sequence[str], names: Sequence[str]) -> "dict[str, Frame]":
    """Return the frame of each name; without a name in front it is that of all files.

    Raises:
        ConfigError: if there is no such name, or no such frame.
    """
    from coordexp.detection.frames import Frame

    found: dict[str, Frame] = {}
    for text in texts:
        name, _, frame = text.rpartition("=")
        if name and name not in names:
            raise ConfigError(f"--frame {text}: no files have the name {name!r}; expected {', '.join(names)}")
        found |= dict.fromkeys([name] if name else names, Frame.parse(frame))
    return found


def check_frames(
    files: "Mapping[str, Sequence[Results]]",
    truth: "GroundTruth",
    frames: "Mapping[str, Frame]",
    command: Sequence[str],
) -> list[str]:
    """Refuse files that fit the ground truth far better in another frame, and return warnings of the others.

    A name whose frame is given is taken at its word. Of several files of one name the first is looked at.

    Args:
        files: by name.
        truth: what they are measured on.
        frames: those that were given, by name.
        command: the words of the command without its frames, to be printed with the right ones.

    Raises:
        ComparisonError: with the command that reads all files rightly.
    """
    from coordexp.detection.frames import Frame
    from coordexp.doctor.boxes import diagnose

    found = {name: diagnose(several[0], truth) for name, several in files.items() if name not in frames}
    other = {name: said.best.frame for name, said in found.items() if said is not None}
    other = {name: frame for name, frame in other.items() if frame != Frame()}
    warnings: list[str] = []
    for name, said in found.items():
        path = files[name][0].path
        if said is None or said.outcome == "good" or said.num_images < _FEWEST_IMAGES:
            continue
        if said.outcome == "unclear":
            warnings.append(f"warning: {path}: no reading of its boxes fits; coordexp doctor boxes says more")
            continue
        given = [word for known, frame in {**frames, **other}.items() for word in ("--frame", f"{known}={frame}")]
        text = (
            f"{path}: read as {said.best.frame}, objects overlap their best box by {said.best.mean_iou:.2f} and "
            f"{said.agree[1]:.0%} have its category, as COCO reads files by {said.plain.mean_iou:.2f} and "
            f"{said.agree[0]:.0%}; keep COCO's reading with --frame {shlex.quote(f'{name}={said.plain.frame}')}, or "
            f"take the other with\n{shlex.join([*command, *given])}"
        )
        if said.outcome == "far better":
            raise ComparisonError(text)
        warnings.append(f"warning: {text}")
    return warnings
