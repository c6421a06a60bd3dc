"""What models write, image by image: answers cut off."""

from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np

from coordexp.detection.boxes import Floats, Ints
from coordexp.detection.decomposition import Measure
from coordexp.detection.ground_truth import GroundTruth, check_known
from coordexp.evaluate.objects import Integer
from coordexp.files import read_content, read_json_lines
from coordexp.statistics.decomposition import Shares

CUT_OFF = Measure("cut_off_fraction", "answers cut off", "share of answers that reach the token limit before their end")
ENDS = {CUT_OFF.name: CUT_OFF.ends}


@dataclass(frozen=True)
class _Answer:
    """What is read of a line of ``objects.jsonl``; its objects, most of the line, are passed over."""

    image_id: Integer
    truncated: bool


_DECODER = msgspec.json.Decoder(_Answer)


def _read_answers(path: Path) -> list[_Answer]:
    """Read them with msgspec, in a quarter of pydantic's time; pydantic says what is wrong with the rest."""
    content = read_content(path)
    try:
        found = _DECODER.decode_lines(content)
    except msgspec.MsgspecError:
        return read_json_lines(_Answer, path)
    num_lines = content.count(b"\n") + bool(content and not content.endswith(b"\n"))
    is_plain = len(found) == num_lines and all(abs(answer.image_id) < 2**63 for answer in found)
    return found if is_plain else read_json_lines(_Answer, path)


def answer_shares(truth: GroundTruth, path: Path) -> Shares:
    """Return the measures of one run's answers as sums over each image.

    Args:
        truth: of the images evaluated.
        path: the run's ``objects.jsonl``.

    Raises:
        DataError: if the file is malformed.
    """
    answers, num_images = _read_answers(path), len(truth.sizes_px)
    image_ids = np.array([answer.image_id for answer in answers], np.int64)
    check_known("image_id", image_ids, truth.sizes_px.keys(), f"{path}: line")
    row = np.searchsorted(np.array(sorted(truth.sizes_px)), image_ids)
    cut_off = _summed(row, [answer.truncated for answer in answers], num_images)
    return {CUT_OFF.name: (cut_off, _summed(row, np.ones(len(row)), num_images))}


def _summed(row: Ints, values: Floats | list[bool], num_images: int) -> Floats:
    return np.asarray(np.bincount(row, weights=np.asarray(values, np.float64), minlength=num_images), np.float64)
