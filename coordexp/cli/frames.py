"""``--frame``: in which frame files of detections stand, and the check that no other frame fits them far better."""

import argparse
import shlex
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from coordexp.cli.arguments import by_name
from coordexp.errors import ComparisonError

if TYPE_CHECKING:
    from coordexp.detection.frames import Frame
    from coordexp.detection.ground_truth import GroundTruth
    from coordexp.detection.result_files import Results


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
    """Return the frame of each name; without a name in front it is that of all files."""
    from coordexp.detection.frames import Frame

    return by_name("--frame", texts, names, Frame.parse)


def check_frames(
    files: "Mapping[str, Sequence[Results]]",
    truth: "GroundTruth",
    frames: "Mapping[str, Frame]",
    command: Sequence[str],
) -> list[str]:
    """Refuse files that fit the ground truth far better in another frame, and return warnings of the others.

    A name whose frame is given is taken at its word. Of several files of one name the first is looked at.

    ``command`` is that which was typed, without its frames: it is printed with the right ones.

    Raises:
        ComparisonError: with the command that reads all files rightly.
    """
    from coordexp.doctor.boxes import diagnose

    found = {name: diagnose(several[0], truth) for name, several in files.items() if name not in frames}
    other = {name: said.best.frame for name, said in found.items() if said is not None and "better" in said.outcome}
    given = [word for name, frame in {**frames, **other}.items() for word in ("--frame", f"{name}={frame}")]
    warnings: list[str] = []
    for name, said in found.items():
        if said is None or said.outcome == "good":
            continue
        text = f"{files[name][0].path}: {said.sentence}"
        if name in other:
            keep = shlex.quote(f"{name}={said.plain.frame}")
            text += f"; keep this reading with --frame {keep}, or take the other with\n{shlex.join([*command, *given])}"
        if said.outcome == "far better":
            raise ComparisonError(text)
        warnings.append(f"warning: {text}")
    return warnings
