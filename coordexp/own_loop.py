"""The parts of a training loop of one's own: read data, make batches, compute losses, generate (docs/python.md).

They need no configuration, no folder of a run, no Ray and no MLflow, only a model, samples and tensors.

Shapes: B sequences, L padded length, V vocabulary, T supervised tokens, N coord tokens, M boxes, U units.
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import overload

import torch
from torch import Tensor, nn

from coordexp.config.schema.data import Data
from coordexp.coord_tokens.codec import decode
from coordexp.coord_tokens.layout import parse_targets
from coordexp.coord_tokens.offset_adapter import inner_model
from coordexp.coord_tokens.vocab import CoordVocab, coord_vocab
from coordexp.data.batch import Batch, predicts_label
from coordexp.data.batch import collate as collate_encoded
from coordexp.data.dataset import DetectionDataset
from coordexp.data.images.patches import ImageSpec
from coordexp.data.prompt import DEFAULT_PROMPT, Prompt
from coordexp.data.sample import SPLITS, Ordering, Sample, Split
from coordexp.data.sources.door import check_read, read_unwritten
from coordexp.data.sources.read_split import ReadSplit, as_coco
from coordexp.detection.detections import write_detections
from coordexp.detection.names.categories import CategoryIndex
from coordexp.errors import TokenizerError
from coordexp.evaluate.answers import Objects, ReadAnswer
from coordexp.evaluate.evaluation import EvaluationImages, ModelEvaluation
from coordexp.evaluate.generate.formats import SequenceFormat
from coordexp.evaluate.generate.model import AnsweringModel, encoder_of_prompts
from coordexp.evaluate.predict import Prediction, prediction_of, without_boxes
from coordexp.evaluate.settings import EvaluationSettings
from coordexp.files import write_json
from coordexp.findings import require
from coordexp.losses.criterion import Criterion
from coordexp.losses.head import head_of_logits
from coordexp.losses.term import UNITS, TermInputs
from coordexp.metrics import BoxKind, Decoding
from coordexp.model.loading import LoadedModel
from coordexp.train.forward import TermForward, count_units

_log = logging.getLogger(__name__)


class DetectionData(Sequence[Sample]):
    """One split as it was read: a sequence of samples, which a torch ``DataLoader`` takes as it is.

    Attributes:
        categories: the name of each category id.
        remarks: what was repaired, left out or looks wrong, a sentence each.
    """

    def __init__(self, read: ReadSplit, samples: Sequence[Sample], remarks: Sequence[str]) -> None:
        self._read = read
        self._samples = samples
        self.categories: Mapping[int, str] = read.categories
        self.remarks = tuple(remarks)

    def __len__(self) -> int:
        return len(self._samples)

    @overload
    def __getitem__(self, index: int) -> Sample: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Sample]: ...

    def __getitem__(self, index: int | slice) -> Sample | Sequence[Sample]:
        return self._samples[index]

    def write_annotations(self, path: str | Path) -> Path:
        """Write the ground truth of the split as a COCO file, on which AP is measured; return its path."""
        path = Path(path)
        write_json(path, {"info": {"description": "written by coordexp"}, **as_coco(self._read)})
        return path


def read_data(
    source: str | Path | Data, *, unpack_to: str | Path = Path("runs/unpacked")
) -> dict[Split, DetectionData]:
    """Read a data set in any format that coordexp knows, with the checks and repairs of a run.

    Args:
        source: a folder with pictures and labels (COCO, LVIS, JSONL, Pascal VOC, YOLO, Hugging Face), or the section
            ``data`` of a configuration, as ``load_config("experiment.yaml").data``.
        unpack_to: folder for pictures that are drawn, or unpacked from parquet files. Other pictures stay in place.

    Returns:
        ``{"train": ..., "val": ...}``. If the folder is not split, it is divided as ``data.val_fraction`` says.

    Raises:
        DataError: if the data cannot be used; the message names the file, the place and the way on.
    """
    data = source if isinstance(source, Data) else Data(format="auto", path=Path(source))
    read = require(read_unwritten(data, data_dir=Path(unpack_to)))
    assert read is not None  # require has raised, if nothing could be read
    splits: dict[Split, DetectionData] = {}
    for split in SPLITS:
        loaded = require(check_read(read, data, split, accept_prequantised=True))
        left_out = [f"left out: {rejected.where}: {rejected.reason}" for rejected in loaded.rejected]
        remarks = [*loaded.notes, *loaded.warnings, *left_out]
        for remark in remarks:
            _log.info("%s: %s", split, remark)
        splits[split] = DetectionData(read.splits[split], loaded.samples, remarks)
    return splits


def collate(
    samples: Sequence[Sample],
    loaded: LoadedModel,
    *,
    prompt: str = DEFAULT_PROMPT,
    max_pixels: int | None = None,
    max_objects: int = 30,
    max_length: int = 4096,
    ordering: Ordering = "top_left",
) -> Batch:
    """Turn samples into one batch for training: decode pictures, write objects as tokens, pad the sequences.

    As a ``collate_fn``: ``DataLoader(data, batch_size=8, collate_fn=partial(collate, loaded=loaded))``.

    Args:
        samples: some samples of :func:`read_data`.
        loaded: the model, whose tokenizer and image processor are used.
        prompt: the instruction.
        max_pixels: larger pictures are shrunk to this many pixels; None: the processor's own limit.
        max_objects: of a picture with more objects, only the largest ones are learnt.
        max_length: limit of a sequence in tokens; a longer target loses its end.
        ordering: order of the objects in a target.

    Returns:
        A batch on the CPU; its attributes name their shapes.

    Raises:
        DataError: if a picture or a description cannot be used.
        TokenizerError: if the tokenizer has no coord tokens.
    """
    tokenizer = loaded.processor.tokenizer
    dataset = DetectionDataset(
        samples=samples,
        tokenizer=tokenizer,
        vocab=_vocab_of(loaded),
        prompt=Prompt.build(tokenizer, prompt),
        image_spec=_image_spec(loaded, max_pixels=max_pixels),
        max_objects=max_objects,
        max_length=max_length,
        seed=0,
        ordering=ordering,
    )
    image_token_id = Prompt.build(tokenizer, prompt).image_token_id
    pad_id = tokenizer.pad_token_id
    if not isinstance(pad_id, int):
        raise TokenizerError("the tokenizer has no padding token; expected pad_token in its configuration")
    encoded = [dataset[index] for index in range(len(dataset))]
    batch = collate_encoded(encoded, pad_id=pad_id, image_token_id=image_token_id)
    # The padding is on the right. Attention is causal, so no token sees it, and a mask would only cost memory.
    return replace(batch, attention_mask=None)


def loss_of_batch(
    loaded: LoadedModel,
    batch: Batch,
    criterion: Criterion,
    *,
    units: Tensor | None = None,
    model: nn.Module | None = None,
) -> tuple[Tensor, dict[str, Tensor]]:
    """Run the model on a batch and compute the loss, without ever making ``[T, V]`` logits of a frozen head.

    Args:
        loaded: the model, with or without coord offsets or PEFT's adapters.
        batch: of :func:`collate`; it is moved to the model's device.
        criterion: the weighted terms.
        units: ``[U]`` units of the whole step by :func:`count_units`, if a step has several batches or ranks. The
            losses of its batches then add up to the loss of the step. None: the batch is the step.
        model: called in place of ``loaded.model``, such as DDP or DeepSpeed around it.

    Returns:
        The loss, differentiable; and the mean of each term over its units, detached. Terms of weight 0 are among them.
    """
    batch = batch.to(loaded.model.device)
    owner = inner_model(loaded.model)
    forward = TermForward(base=owner, vocab=_vocab_of(loaded), image_spec=_image_spec(loaded, max_pixels=None))
    inputs, _ = forward(loaded.model if model is None else model, batch)
    return _weighed(criterion, inputs, count_units([batch]) if units is None else units)


def loss_of_logits(
    logits_BLV: Tensor,
    labels_BL: Tensor,
    criterion: Criterion,
    vocab: CoordVocab,
    *,
    boxes_norm_xyxy: Tensor | None = None,
    units: Tensor | None = None,
) -> tuple[Tensor, dict[str, Tensor]]:
    """Compute the same loss from the logits of any model whose sequences are written in coord tokens.

    Args:
        logits_BLV: ``[B, L, V]`` logits; the logits at a position predict the token behind it.
        labels_BL: ``[B, L]`` true tokens, -100 where nothing is learnt. Objects are found in them.
        criterion: the weighted terms.
        vocab: the ids of coord tokens and markers, of :func:`coordexp.expand_vocab`.
        boxes_norm_xyxy: ``[M, 4]`` true boxes of all complete objects, in the order of the batch. None: the boxes that
            the labels say, which are rounded to bins.
        units: as for :func:`loss_of_batch`.

    Returns:
        The loss, differentiable; and the mean of each term over its units, detached.

    Raises:
        ValueError: if the shapes do not fit together, or numbers are digits.
    """
    if logits_BLV.ndim != 3 or logits_BLV.shape[:2] != labels_BL.shape:
        shapes = f"{tuple(logits_BLV.shape)} and {tuple(labels_BL.shape)}"
        raise ValueError(f"expected logits [B, L, V] and labels [B, L], got shapes {shapes}")
    if vocab.numbers.are_text:
        raise ValueError("expected a vocabulary of coord tokens, got one whose numbers are digits")
    ids = vocab.numbers.ids
    # Which labels are supervised decides the shapes below. On a GPU the host would wait for the device at each of them.
    labels_BL = labels_BL.cpu()
    rows_T = predicts_label(labels_BL).flatten().nonzero().squeeze(1)
    targets_T = labels_BL.flatten()[rows_T + 1]
    is_coord_T = (targets_T >= ids.start) & (targets_T < ids.stop)
    coord_rows_N = is_coord_T.nonzero().squeeze(1)

    # For the flat position of each label, its row among the coord tokens; -1 for any other label.
    row_at = torch.full((labels_BL.numel(),), -1)
    row_at[rows_T[coord_rows_N] + 1] = torch.arange(len(coord_rows_N))
    layouts = [parse_targets(labels_L, vocab) for labels_L in labels_BL]
    positions = [layout.coord_positions + row * labels_BL.shape[1] for row, layout in enumerate(layouts)]
    box_rows_M4 = row_at[torch.cat(positions)]
    num_boxes = torch.tensor([len(layout.coord_positions) for layout in layouts])
    bins_N = targets_T[coord_rows_N] - ids.start
    if boxes_norm_xyxy is None:
        boxes_norm_xyxy = decode(bins_N)[box_rows_M4].float()
    if boxes_norm_xyxy.shape != (len(box_rows_M4), 4):
        got = tuple(boxes_norm_xyxy.shape)
        raise ValueError(f"expected a box for each of {len(box_rows_M4)} complete objects, got shape {got}")

    device = logits_BLV.device
    logits_TV = logits_BLV.flatten(0, 1).index_select(0, rows_T.to(device))
    head = head_of_logits(logits_TV, targets_T.to(device), block=ids, coord_rows_N=coord_rows_N.to(device))
    box_image_M = torch.arange(len(layouts)).repeat_interleave(num_boxes)
    box_object_M = torch.cat([torch.arange(int(number)) for number in num_boxes])  # counted within each image
    inputs = TermInputs(
        head=head,
        is_coord_T=is_coord_T.to(device),
        coord_bins_N=bins_N.to(device),
        coord_places_N=torch.zeros_like(bins_N).to(device),
        box_rows_M4=box_rows_M4.to(device),
        boxes_norm_xyxy_M4=boxes_norm_xyxy.to(device),
        box_image_M=box_image_M.to(device),
        box_object_M=box_object_M.to(device),
    )
    if units is None:
        counts = {
            "tokens": len(targets_T),
            "text_tokens": len(targets_T) - len(bins_N),
            "coord_tokens": len(bins_N),
            "boxes": len(box_rows_M4),
        }
        units = torch.tensor([counts[unit] for unit in UNITS], dtype=torch.float64)
    return _weighed(criterion, inputs, units)


def _weighed(criterion: Criterion, inputs: TermInputs, units_U: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
    """Return the weighted loss, and the mean of each term over its units."""
    loss, sums = criterion(inputs, units_U.to(inputs.head.log_z_T.device))
    means: dict[str, Tensor] = {}
    for name, value in sums.items():
        num_units = float(units_U[UNITS.index(criterion.unit_of(name))])
        means[name] = value / max(1.0, num_units)
    return loss, means


@dataclass(frozen=True)
class Answers:
    """What a model wrote for some samples.

    Attributes:
        predictions: the objects of each sample in pixels, in the order of the samples.
    """

    predictions: tuple[Prediction, ...]
    _read: tuple[ReadAnswer, ...]
    _sizes_px: Mapping[int, tuple[int, int]]

    def write_detections(self, path: str | Path, *, boxes: BoxKind = "expected") -> Path:
        """Write the objects that name a category as a COCO results file; return its path.

        Args:
            path: the file to write.
            boxes: ``expected``: the means of the distributions over bins; ``argmax``: the bins as they were written.
        """
        objects = Objects.joined([answer.objects for answer in self._read])
        path = Path(path)
        write_detections(path, objects.detections(boxes, self._sizes_px))
        return path


def generate(
    loaded: LoadedModel,
    data: DetectionData,
    *,
    decoding: Decoding = "constrained",
    max_new_tokens: int = 512,
    batch_size: int = 16,
    prompt: str = DEFAULT_PROMPT,
    max_pixels: int | None = None,
) -> Answers:
    """Let a model find the objects in the pictures of samples, as an evaluation of coordexp does.

    Args:
        loaded: the model, with or without coord offsets or PEFT's adapters.
        data: the samples. A description that is no name of its categories is no detection.
        decoding: ``constrained`` allows only tokens of the object grammar, ``free`` allows all.
        max_new_tokens: length limit of an answer.
        batch_size: how many pictures are answered together.
        prompt: the instruction, the same as in training.
        max_pixels: limit of a picture's size, the same as in training.

    Returns:
        The answers, which can be written as a COCO results file.

    Raises:
        TokenizerError: if the tokenizer has no coord tokens.
        TrainingError: if the model's logits are not finite.
    """
    tokenizer = loaded.processor.tokenizer
    image_spec = _image_spec(loaded, max_pixels=max_pixels)
    encode = encoder_of_prompts(tokenizer, Prompt.build(tokenizer, prompt), image_spec)
    form = SequenceFormat(_vocab_of(loaded), tokenizer)
    answering = AnsweringModel(loaded.model, tokenizer, image_spec, form, encode)
    settings = EvaluationSettings(
        batch_size=batch_size, max_new_tokens=max_new_tokens, decoding=(decoding,), details=False
    )
    samples = list(data)
    evaluation_data = EvaluationImages(without_boxes(samples), samples, CategoryIndex(dict(data.categories)))
    evaluation = ModelEvaluation(answering, evaluation_data, settings, curves_of=())
    # Answers come in the order in which they are finished, not in the order of the samples.
    answer_of_image = {answer.image_id: answer for answer in evaluation.answer(decoding, evaluation.queues)}
    answers = tuple(answer_of_image[sample.image_id] for sample in samples)
    predictions = tuple(prediction_of(sample, answer) for sample, answer in zip(samples, answers, strict=True))
    return Answers(predictions, answers, evaluation_data.sizes_px)


def _vocab_of(loaded: LoadedModel) -> CoordVocab:
    """Return the coordinate vocabulary; if the model was loaded without one, it may have been added since."""
    if loaded.vocab is None:
        return coord_vocab(loaded.processor.tokenizer)
    return loaded.vocab


def _image_spec(loaded: LoadedModel, *, max_pixels: int | None) -> ImageSpec:
    return ImageSpec.from_processor(loaded.processor.image_processor, min_pixels=None, max_pixels=max_pixels)
