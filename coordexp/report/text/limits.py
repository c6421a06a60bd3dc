"""What the limits on objects and tokens took away, as runs have counted it, in sentences for a report."""

from coordexp.data.box_limits.cut_boxes import (
    MAX_LENGTH,
    MAX_NEW_TOKENS,
    MAX_OBJECTS,
    CutBoxes,
    too_many,
    unlearnt,
    unwritten,
)
from coordexp.report.records.data import ExperimentData, RunRecord, by_group

_WARNING = "WARNING: "
_METRICS = {  # of each key: the boxes it cut, and of how many
    MAX_OBJECTS: ("final/boxes_over_max_objects", "final/train_boxes"),
    MAX_LENGTH: ("final/boxes_over_max_length", "final/train_boxes"),
    MAX_NEW_TOKENS: ("final/boxes_over_max_new_tokens", "final/val_boxes"),
}


def limit_notes(data: ExperimentData) -> list[str]:
    """Return how many boxes were never learnt and never written, by group where groups differ.

    A sentence about more of them than a result can ignore begins with ``WARNING:``. Groups may differ: digits take
    more tokens than coord tokens. Runs that did not count, of earlier versions, are left out.
    """
    groups_by_sentence: dict[str, list[str]] = {}
    groups = {group: runs[0] for group, runs in by_group(data.trained).items()}
    for group, run in groups.items():
        for sentence in _sentences(run):
            groups_by_sentence.setdefault(sentence, []).append(group)
    notes: list[str] = []
    for sentence, names in groups_by_sentence.items():
        of_groups = "" if len(names) == len(groups) else f"{', '.join(names)}: "
        if sentence.startswith(_WARNING):
            notes.append(f"{_WARNING}{of_groups}{sentence.removeprefix(_WARNING)}.")
        else:
            notes.append(f"{of_groups}{sentence}.")
    return notes


def _sentences(run: RunRecord) -> list[str]:
    """Return what the limits of a run cut, a sentence for each kind of limit that cut anything."""
    limits: dict[str, CutBoxes] = {}
    for key, (cut_metric, total_metric) in _METRICS.items():
        limit = run.number(key)
        num_cut, num_boxes = run.metrics.get(cut_metric), run.metrics.get(total_metric)
        if limit is not None and num_cut is not None and num_boxes is not None:
            limits[key] = CutBoxes(key, int(limit), int(num_cut), int(num_boxes))
    on_training = [limits[key] for key in (MAX_OBJECTS, MAX_LENGTH) if key in limits]
    on_answers = [limits[key] for key in (MAX_NEW_TOKENS,) if key in limits]
    ordering = "random" if run.params.get("data.ordering") == "random" else "top_left"
    sentences = [_sentence("training", unlearnt(on_training, ordering=ordering), on_training)]
    sentences += [_sentence("validation", unwritten(limit), on_answers) for limit in on_answers]
    return list(filter(None, sentences))


def _sentence(split: str, text: str, limits: list[CutBoxes]) -> str:
    """Return what limits cut of the boxes of a split, a warning where that is too many; "" if they cut none."""
    if not text:
        return ""
    return f"{_WARNING if too_many(limits) else ''}of the {split} boxes, {text}"
