"""Count the boxes of a split that the limits on objects and tokens take away."""

from collections.abc import Sequence
from dataclasses import dataclass

from transformers import PreTrainedTokenizerBase

from coordexp.coord_tokens.grammar.sequence import num_whole_objects, target_length
from coordexp.coord_tokens.vocab import CoordVocab
from coordexp.data.box_limits.cut_boxes import MAX_LENGTH, MAX_NEW_TOKENS, MAX_OBJECTS, CutBoxes
from coordexp.data.dataset import DetectionDataset, order_seed
from coordexp.data.sample import Ordering, Sample


@dataclass(frozen=True)
class BoxLimits:
    """What each limit takes away: two limits cut training boxes, one cuts validation boxes."""

    max_objects: CutBoxes
    max_length: CutBoxes
    max_new_tokens: CutBoxes

    @property
    def on_training(self) -> tuple[CutBoxes, CutBoxes]:
        return self.max_objects, self.max_length

    def metrics(self) -> dict[str, float]:
        """Return the counts under the names of their metrics."""
        counts = {
            "boxes_over_max_objects": self.max_objects.num_cut,
            "boxes_over_max_length": self.max_length.num_cut,
            "boxes_over_max_new_tokens": self.max_new_tokens.num_cut,
            "train_boxes": self.max_objects.num_boxes,
            "val_boxes": self.max_new_tokens.num_boxes,
        }
        return {f"final/{name}": float(count) for name, count in counts.items()}


def over_max_objects(samples: Sequence[Sample], max_objects: int) -> CutBoxes:
    """Count the boxes over ``data.max_objects``: the smallest boxes of their images."""
    counts = [len(sample.objects) for sample in samples]
    num_cut = sum(max(0, count - max_objects) for count in counts)
    return CutBoxes(MAX_OBJECTS, max_objects, num_cut, sum(counts), max(counts, default=0))


def over_max_length(dataset: DetectionDataset) -> CutBoxes:
    """Count the boxes that ``data.max_length`` cuts from the ends of training targets.

    Boxes over ``data.max_objects`` are not counted again.
    """
    num_boxes = dataset.num_target_objects + dataset.num_capped_objects
    return CutBoxes(MAX_LENGTH, dataset.max_length, dataset.num_cut_objects, num_boxes, dataset.longest_uncut)


def over_max_new_tokens(
    samples: Sequence[Sample],
    tokenizer: PreTrainedTokenizerBase,
    vocab: CoordVocab,
    *,
    ordering: Ordering,
    seed: int,
    limit: int,
) -> CutBoxes:
    """Count the ground-truth boxes that lie beyond an answer of ``evaluation.max_new_tokens`` tokens.

    Even a perfect answer, in the order in which objects are taught, would lack them.

    Args:
        samples: of the validation split.
        tokenizer: tokenises descriptions.
        vocab: how objects and their boxes are written.
        ordering: ``data.ordering``.
        seed: of ``ordering: random``.
        limit: ``evaluation.max_new_tokens``, the end token included.
    """
    num_box_tokens = vocab.numbers.num_box_tokens
    num_tokens_of: dict[str, int] = {}  # by description
    num_cut = 0
    num_boxes = 0
    longest = 0
    for sample in samples:
        for desc in sample.objects.descs:
            if desc not in num_tokens_of:
                num_tokens_of[desc] = len(tokenizer.encode(desc, add_special_tokens=False))
        num_boxes += len(sample.objects)
        lengths = [num_tokens_of[desc] for desc in sample.objects.descs]
        answer_length = target_length(lengths, vocab.structure, num_box_tokens=num_box_tokens)
        longest = max(longest, answer_length)
        if answer_length <= limit:
            continue
        # Which objects are cut depends on their order; whether any is cut does not.
        objects = sample.objects.ordered(ordering, seed=order_seed(seed, 0, sample))
        lengths = [num_tokens_of[desc] for desc in objects.descs]
        num_written = num_whole_objects(lengths, vocab.structure, num_box_tokens=num_box_tokens, room=limit)
        num_cut += len(objects) - num_written
    return CutBoxes(MAX_NEW_TOKENS, limit, num_cut, num_boxes, longest)
