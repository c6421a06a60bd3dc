"""What a run says of its data before it trains: how much there is, and what was left out and why."""

from collections.abc import Mapping

from coordexp.data.batches.dataset import DetectionDataset
from coordexp.data.sample import SplitData

_NUM_SHOWN = 5
_SAID = {
    "images_without_objects": "images without objects",
    "crowd": "crowd boxes are no targets",
    "ignored": "ignored boxes are no targets",
    "clipped": "boxes were cut at the image border",
    "thin": "boxes are thinner than a bin and were widened to one",
    "of_rejected_images": "annotations are lost with their images",
    "repeated_file_names": "images name a file that another one names",
}


def data_lines(name: str, data: SplitData, dataset: DetectionDataset | None = None) -> list[str]:
    """Return lines for a person: one that counts, one for each of the first records left out.

    Args:
        name: of the split.
        data: the split.
        dataset: its encoded samples; adds what the limits on objects and length cost.
    """
    parts = [f"{len(data.samples):,} images", f"{data.counts.get('boxes', 0):,} boxes"]
    parts += [f"{data.counts[key]:,} {text}" for key, text in _SAID.items() if data.counts.get(key)]
    if dataset is not None:
        parts += _limits(
            {
                "objects over data.max_objects are left out, the smallest": dataset.num_capped_objects,
                "samples lose the end of their target to data.max_length": dataset.num_cut_samples,
            }
        )
    lines = [f"{name}: {'; '.join(parts)}"]
    if data.rejected:
        shown = data.rejected[:_NUM_SHOWN]
        lines.append(f"{name}: {len(data.rejected):,} records are left out:")
        lines += [f"  {record.where}: {record.reason}" for record in shown]
        lines += [f"  and {len(data.rejected) - len(shown):,} more"] if len(data.rejected) > len(shown) else []
    return lines


def _limits(counts: Mapping[str, int]) -> list[str]:
    return [f"{number:,} {text}" for text, number in counts.items() if number]
