"""What the heads of tables and the names of rows mean: listed at a page's end, and shown where one points at a head."""

from collections.abc import Mapping, Sequence

from coordexp.detection.decomposition import MEASURES
from coordexp.detection.metrics import detection_metrics
from coordexp.detection.protocols import PROTOCOLS
from coordexp.metrics import AP_METRICS, GENERATION_METRICS
from coordexp.report.table import COUNTED, Table
from coordexp.report.text.tables import FILE

_MEANINGS: Mapping[str, str] = {
    "AP": "average precision as COCO defines it, mean over IoU .50 to .95",
    "read by": "which number of a coordinate's distribution is taken for the box: the most likely bin, or the mean",
    "boxes": "which number of a coordinate's distribution is taken for the box: the most likely bin, or the mean",
    "seeds": "the runs behind the row; numbers are their means",
    "95 % interval": "95 % confidence interval: draws of images or of their units, and of seeds where there are more",
    "pair": "the first group minus the second; the better one stands first",
    "difference": "of the first group minus the second, on the same images",
    "p, random swaps": "how often chance gives as large a difference if each image's detections, or each unit's, are "
    "swapped by a coin",
    "p, bootstrap": "how often chance gives as large a difference, from the same draws as the interval",
    "p, corrected": "the larger of the two p-values, corrected for all pairs (Holm): below .05 a difference is told",
    "detectable": "the smallest true difference that would have been found four times in five",
    "two more seeds": "the smallest true difference that would be found with two more seeds of each group, roughly",
    "twice the images": "the same with twice as many images, and the seeds there are",
    "twice the units": "the same with twice as many units, and the seeds there are",
    "standard error, images": "the part of the difference's standard error that comes from which images there are",
    "standard error, units": "the part of the difference's standard error that comes from which units there are",
    "standard error, seeds": "the same by which seeds there are",
    "mean AP": "mean height of the curve of AP over steps, on the subset of images evaluated in training",
    "own reading": "each group read as its loss suggests",
    "all by expectation": "every group read by the mean of each coordinate's distribution",
    "all by argmax": "every group read by the most likely bin of each coordinate",
    "own reading, free decoding": "each group's own reading of what it writes without the grammar",
    "repeated boxes": "boxes that repeat a better one of the same image and category",
    "share of steps clipped": "steps whose gradient was longer than the limit and was scaled down to it",
    "limit": "length to which a longer gradient is scaled down",
    "total loss": "the weighted sum of all terms, which training minimises: not comparable where the terms differ",
    COUNTED: "which detections the row's F1 is of",
    "all detections": "F1 of every detection, in any image",
    "positive-only": "F1 after detections of categories that are not annotated in their image are deleted, in the "
    "arithmetic of other papers, whose defects flatter it",
    "protocol's part": "positive-only minus all detections: how much of the F1 comes from the protocol",
    "argmax": "boxes of the most likely bin of each coordinate",
    "expected": "boxes of the mean of each coordinate's distribution",
    "protocol": "how published tables measure detections, all of the same boxes",
    "ranking": "the groups by this protocol, the best first",
    "AP, as scored": "COCO's AP with the scores that the boxes have",
    FILE: "boxes as the file of detections has them",
    "not told apart": "no difference can be shown",
    "nothing learned": "no group reaches AP .01, so that a difference says nothing",
    "AP, expectation": "AP of boxes of the mean of each coordinate's distribution",
    "AP, argmax": "AP of boxes of the most likely bin of each coordinate",
    "top 5": "boxes of the mean over the coord tokens among the 5 likeliest tokens, as OpenAI's interface returns them",
    "top 20": "the same for 20 tokens",
    "top 128": "the same for 128 tokens, the most that vLLM returns",
    "place": "a slot of the box (x1, y1, x2, y2), or the rank of its object in the order in which objects are written",
    "likeliest bin off": "distance of the most likely bin from the true one, in bins of a thousandth of the side",
    "mean off": "distance of the mean of the distribution from the true bin, in bins",
    "width": "standard deviation of the distribution of a coordinate, in bins",
    "entropy": "entropy of the distribution of a coordinate, in nats; 6.9 is a flat one",
    "far by 10": "share of coordinates whose mean is more than 10 bins from their most likely bin: two places compete",
    "far by 50": "the same for 50 bins: a mean between two objects is no box",
    "own": "the group's own value of a tuned key, which the first trial has",
    "searched": "what the trials of a group drew their values from",
    "edge": "where the chosen value lies within a tenth of an end of what was searched, or outside of it",
    "AP, own values": "AP of the trial with the group's own values, on the tuning split",
    "AP, chosen": "AP of the chosen trial on the tuning split, by which it was chosen: too high for its point",
    "AP, validation": "AP of the group's runs on the validation images, which had no part in the tuning",
    "gain": "AP of the chosen trial minus that with the group's own values, on the tuning split",
}
# What the list calls all heads and rows that begin so, up to the dots, and what they mean.
_FAMILIES: Mapping[str, str] = {
    "recall, rank …": "share found, at IoU .50, of the objects with that place in the order in which objects are "
    "written, from the top of the image",
    "AP cut": "AP with each answer cut at the first object that repeats an earlier one exactly",
    "repeats": "share of objects that repeat an earlier one of their answer: same description, same bins",
    "in a row": "most repeats in a row in one answer",
    "p of slices, …": "how often chance gives as large a difference on this slice, corrected for all values of tags "
    "and all pairs (Holm)",
    "beyond largest, …": "the pair's difference on this slice minus that on the largest slice of the tag",
    "steps to … %": "steps until AP on the subset reaches that part of the best group's last one",
    "tokens per object": "generated tokens, malformed ones too, over well-formed objects",
    "seconds per object": "time of generation, all workers at once, over well-formed objects",
}
# Words of titles and sentences; each is explained where a table has it in its title or a head.
_PHRASES: Mapping[str, str] = {
    "IoU": "overlap of two boxes over their union: 1 is the same box",
    "AP50": "AP at IoU .50",
    "F1": "harmonic mean of precision (detections that are right) and recall (objects that are found)",
    "constrained": "decoding under a grammar, which makes every box four coord tokens",
    "free": "decoding without the grammar: a model may write what is no object",
    "units": "images that are not independent, such as the frames of a clip: drawn and swapped as a whole",
    "convergence": "how fast a group learns: AP over the steps of training",
}
_ROWS_OF_WORDS = ("part", "protocol", COUNTED, "boxes", "read by", "verdict")


def meaning(word: str) -> str:
    """Return what a head or the name of a row means in a sentence; "" where it says so itself."""
    if word in _MEANINGS:
        return _MEANINGS[word]
    family = _family(word)
    if family is not None:
        return _FAMILIES[family]
    for protocol in PROTOCOLS:
        if protocol.head == word:
            return protocol.description
    for metric in (*AP_METRICS, *GENERATION_METRICS, *(metric.declared for metric in detection_metrics())):
        if metric.column == word and metric.description:
            return metric.description
    for measure in MEASURES:
        if measure.head == word:
            return measure.description
    return ""


def words_of(tables: Sequence[Table]) -> list[tuple[str, str]]:
    """Return what tables have in heads and rows that is no plain word, each with its meaning once, by the alphabet."""
    words: dict[str, None] = {}
    for table in tables:
        words |= dict.fromkeys(table.columns)
        for column, head in enumerate(table.columns):
            if head in _ROWS_OF_WORDS:
                words |= dict.fromkeys(row.cells[column] for row in table.rows)
    all_text = " ".join([*words, *(table.title for table in tables)]).lower()
    explained = {phrase: text for phrase, text in _PHRASES.items() if phrase.lower() in all_text}
    if words:
        explained["IoU"] = _PHRASES["IoU"]  # in the meaning of AP
    for word in words:
        text = meaning(word)
        if text:
            explained[_family(word) or word] = text
    return sorted(explained.items(), key=lambda entry: entry[0].lower())


def _family(word: str) -> str | None:
    """Return the family of heads that a word belongs to by its beginning, such as ``recall, rank ...``."""
    return next((name for name in _FAMILIES if word.startswith(name.partition("\u2026")[0])), None)
