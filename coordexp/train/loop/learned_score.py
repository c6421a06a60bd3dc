"""Training of a learned score: on the boxes that the model writes itself on held-out images, or on perturbed true ones.

Shapes: M boxes of one image, D hidden, S scalars.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from coordexp.config.schema import ExperimentConfig
from coordexp.coord_tokens.bins import decode_array
from coordexp.data.sample import Objects, Sample
from coordexp.detection.boxes import Floats, iou_table, to_boxes_px_xywh
from coordexp.detection.categories import CategoryIndex
from coordexp.evaluate.generate.decode import SplitDecoder
from coordexp.evaluate.generate.generation import GeneratedSequence
from coordexp.evaluate.generate.given import GivenAnswer
from coordexp.evaluate.generate.parse import SequenceParser
from coordexp.model.score_head import SCALARS, ScoreHead, fit_score_head
from coordexp.runs import ranks
from coordexp.train.setup.encoding import Encoding

_LARGEST_SPREAD = 0.5  # of a perturbed corner, in sides of its box: IoU from 1 down to almost 0
_SEED = 20261122


@dataclass(frozen=True)
class _ScoredImage:
    """Boxes of one image: what a head sees of each, and their best IoU with ground truth of their category."""

    image_id: int
    hidden_MD: Tensor
    scalars_MS: Tensor
    ious_M: Floats


def train_score_head(
    config: ExperimentConfig,
    holdout: Sequence[Sample],
    *,
    decoder: SplitDecoder,
    parser: SequenceParser,
    names: CategoryIndex,
) -> ScoreHead:
    """Train the head of the model as it is now; every rank calls this and gets the same head.

    Args:
        config: of the run.
        holdout: the held-out images.
        decoder: generates on them under the object grammar, or reads :func:`perturbed_answers`; whole hidden states
            are its readout.
        parser: of the answers.
        names: finds the category of a description.
    """
    # A perturbed box is the one that is written; the distributions of a model that reads it know the true one.
    reading = config.reading if config.evaluation.score_boxes == "own" else "argmax"
    samples = {sample.image_id: sample for sample in holdout}
    found: list[_ScoredImage] = []
    for queue in decoder.queues[ranks.rank() :: ranks.world_size()]:
        for seq in decoder.sequences("constrained", [queue]):  # a queue at a time: whole hidden states are large
            objects = parser.record(seq).objects
            boxes = [item.expected if reading == "expected" else decode_array(item.bins) for item in objects]
            ids = [item.category_id for item in objects]
            ious_M = best_ious(np.array(boxes, np.float64).reshape(-1, 4), ids, samples[seq.image_id], names)
            known = [at for at, category in enumerate(ids) if category is not None]
            found.append(_ScoredImage(seq.image_id, *_features(seq, parser, known), ious_M[known]))
    # Equal for any number of ranks, which share the images.
    images = sorted((one for part in ranks.gather_to_first(found) for one in part), key=lambda one: one.image_id)
    head: list[ScoreHead | None] = [None]
    if ranks.rank() == 0:
        head[0] = fit_score_head(
            torch.cat([image.hidden_MD for image in images]),
            torch.cat([image.scalars_MS for image in images]),
            torch.from_numpy(np.concatenate([image.ious_M for image in images])),
            torch.tensor([image.image_id for image in images for _ in image.ious_M], dtype=torch.int64),
            boxes=config.evaluation.score_boxes,
        )
    (shared,) = ranks.from_first(head)
    assert shared is not None
    return shared


def _features(seq: GeneratedSequence, parser: SequenceParser, known: Sequence[int]) -> tuple[Tensor, Tensor]:
    """Return hidden states and scalars of the objects of known categories."""
    boxes = [parser.scored_boxes(seq)[at] for at in known]
    assert seq.readout is not None
    hidden_MD = torch.from_numpy(seq.readout[[end for end, _ in boxes]])
    scalars = [scalars for _, scalars in boxes]
    return hidden_MD, torch.tensor(scalars, dtype=torch.float64).reshape(-1, len(SCALARS))


def perturbed_answers(holdout: Sequence[Sample], encoding: Encoding) -> Mapping[int, GivenAnswer]:
    """Return ground truth of the held-out images, randomly moved and resized, as answers that a model can read."""
    written = encoding.dataset([replace(sample, objects=_perturbed(sample)) for sample in holdout])
    prompts = encoding.dataset(holdout, with_targets=False)
    return {
        sample.image_id: GivenAnswer(
            sample.image_id, token_ids=tuple(written.token_ids(at)[len(prompts.token_ids(at)) :])
        )
        for at, sample in enumerate(holdout)
    }


def best_ious(
    boxes_norm_xyxy: Floats, category_ids: Sequence[int | None], sample: Sample, names: CategoryIndex
) -> Floats:
    """Return ``[M]`` the largest IoU of each box with an object of its category, 0 where there is none.

    It is what :func:`coordexp.detection.box_evaluation.BoxEvaluation.oracle_matches` scores boxes with; crowds are no
    objects of a sample.
    """
    size = np.array([[sample.width, sample.height]], np.float64)
    true = sample.objects
    table = iou_table(to_boxes_px_xywh(boxes_norm_xyxy, size), to_boxes_px_xywh(true.boxes_norm_xyxy, size))
    true_ids = [names.find(desc) for desc in true.descs]
    alike = [[mine is not None and mine == other for other in true_ids] for mine in category_ids]
    return np.where(np.array(alike, bool).reshape(table.shape), table, 0.0).max(axis=1, initial=0.0)


def _perturbed(sample: Sample) -> Objects:
    """Move each box's centre and scale its sides; how much is drawn for each box."""
    boxes = sample.objects.boxes_norm_xyxy
    rng = np.random.default_rng([_SEED, sample.image_id % 2**64])
    spread = rng.uniform(0, _LARGEST_SPREAD, (len(boxes), 1))
    sides, centre = boxes[:, 2:] - boxes[:, :2], (boxes[:, :2] + boxes[:, 2:]) / 2
    centre = centre + rng.normal(size=sides.shape) * spread * sides
    half = sides * np.exp(rng.normal(size=sides.shape) * spread) / 2
    return Objects(sample.objects.descs, np.clip(np.concatenate([centre - half, centre + half], axis=1), 0, 1))
