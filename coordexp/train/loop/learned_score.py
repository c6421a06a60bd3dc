"""Training of a learned score: on the boxes that the model writes itself on held-out images, or on perturbed true ones.

Shapes: M boxes of one image, D hidden.
"""

from collections.abc import Sequence
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
from coordexp.evaluate.generate.parse import SequenceParser
from coordexp.model.score_head import ScoreHead, fit_score_head
from coordexp.runs import ranks
from coordexp.train.setup.components import Components

_LARGEST_SPREAD = 0.5  # of a perturbed corner, in sides of its box: IoU from 1 down to almost 0
_SEED = 20261122


@dataclass(frozen=True)
class _ScoredImage:
    """Boxes of one image: the hidden states behind them, and their best IoU with ground truth of their category."""

    image_id: int
    hidden_MD: Tensor
    ious_M: Floats


def train_score_head(
    config: ExperimentConfig, parts: Components, *, decoder: SplitDecoder, parser: SequenceParser, names: CategoryIndex
) -> ScoreHead:
    """Train the head of the model as it is now; every rank calls this and gets the same head.

    Args:
        config: of the run.
        parts: of the run; the model is left as it is.
        decoder: generates on the held-out images, and reads whole hidden states.
        parser: of its answers.
        names: finds the category of a description.
    """
    if config.evaluation.score_boxes == "own":
        found = _own_boxes(config, parts.holdout, decoder, parser, names)
    else:
        found = _perturbed_boxes(config, parts, names)
    # Equal for any number of ranks, which share the images.
    images = sorted((one for part in ranks.gather_to_first(found) for one in part), key=lambda one: one.image_id)
    head: list[ScoreHead | None] = [None]
    if ranks.rank() == 0:
        hidden_ND = torch.cat([image.hidden_MD for image in images])
        ious_N = torch.from_numpy(np.concatenate([image.ious_M for image in images]))
        images_N = torch.tensor([image.image_id for image in images for _ in image.ious_M], dtype=torch.int64)
        head[0] = fit_score_head(hidden_ND, ious_N, images_N, boxes=config.evaluation.score_boxes)
    (shared,) = ranks.from_first(head)
    assert shared is not None
    return shared


def _own_boxes(
    config: ExperimentConfig,
    holdout: Sequence[Sample],
    decoder: SplitDecoder,
    parser: SequenceParser,
    names: CategoryIndex,
) -> list[_ScoredImage]:
    """Return the boxes that the model writes under the object grammar, in the reading of the headline."""
    samples = {sample.image_id: sample for sample in holdout}
    found: list[_ScoredImage] = []
    for seq in decoder.sequences("constrained", decoder.batches[ranks.rank() :: ranks.world_size()]):
        objects, ends = parser.record(seq).objects, parser.box_ends(seq)
        boxes = [item.expected if config.reading == "expected" else decode_array(item.bins) for item in objects]
        ids = [item.category_id for item in objects]
        ious_M = best_ious(np.array(boxes, np.float64).reshape(-1, 4), ids, samples[seq.image_id], names)
        assert seq.readout is not None
        known = [at for at, category in enumerate(ids) if category is not None]
        hidden_MD = torch.from_numpy(seq.readout[ends][known])
        found.append(_ScoredImage(seq.image_id, hidden_MD, ious_M[known]))
    return found


def _perturbed_boxes(config: ExperimentConfig, parts: Components, names: CategoryIndex) -> list[_ScoredImage]:
    """Return ground truth of the held-out images, randomly moved and resized, in one teacher-forced pass."""
    encoding, size = parts.encoding, config.training.per_device_batch_size
    perturbed = [replace(sample, objects=_perturbed(sample)) for sample in parts.holdout]
    dataset = encoding.dataset(perturbed)
    device = next(parts.model.parameters()).device
    found: list[_ScoredImage] = []
    with torch.no_grad():
        for start in range(ranks.rank() * size, len(dataset), ranks.world_size() * size):
            chosen = range(start, min(start + size, len(dataset)))
            batch = encoding.collate([dataset[i] for i in chosen]).to(device)
            terms, hidden_TD = parts.forward_terms.with_hidden(parts.forward_terms.base, batch)
            # A row predicts its coordinate; the next row of the sequence has seen the whole box.
            behind_M = terms.is_coord_T.nonzero().squeeze(1)[terms.box_rows_M4[:, -1]] + 1
            hidden_MD, boxes = hidden_TD[behind_M].float().cpu(), terms.boxes_norm_xyxy_M4.double().cpu().numpy()
            image_M = terms.box_image_M.cpu().numpy()
            for row, index in enumerate(chosen):
                own = boxes[image_M == row]
                descs = _descs_of(own, perturbed[index].objects)
                ious_M = best_ious(own, [names.find(desc) for desc in descs], parts.holdout[index], names)
                found.append(_ScoredImage(parts.holdout[index].image_id, hidden_MD[image_M == row], ious_M))
    return found


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


def _descs_of(boxes: Floats, objects: Objects) -> list[str]:
    """Return the description of each box, found by its float32 coordinates: targets have an order of their own."""
    known = objects.boxes_norm_xyxy.astype(np.float32)
    return [objects.descs[int((known == box.astype(np.float32)).all(axis=1).argmax())] for box in boxes]
