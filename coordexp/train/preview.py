"""What a model is trained on, for a person to look at: tokens by role, and boxes read back from them."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Literal

import torch
from PIL import Image

from coordexp.config.schema import ExperimentConfig
from coordexp.coord_tokens.codec import decode
from coordexp.coord_tokens.layout import parse_targets
from coordexp.data.fed import fed_size
from coordexp.data.image_file import read_image
from coordexp.data.sample import Sample, SplitData
from coordexp.data.sampler import LengthBucketSampler
from coordexp.data.sources.source import Split
from coordexp.model.checkpoint.directory import find_checkpoint
from coordexp.model.processor import Processor
from coordexp.train.setup.encoding import Encoding, build_encoding, read_split

Role = Literal["prompt", "image", "description", "coord", "structure"]
BoxPx = tuple[float, float, float, float]


@dataclass(frozen=True)
class TokenSpan:
    """Neighbouring tokens of one role.

    Attributes:
        role: what they are to the model.
        text: as the tokenizer writes them; of many image tokens, one and their number.
        supervised: whether they are labels.
    """

    role: Role
    text: str
    supervised: bool


@dataclass(frozen=True)
class Preview:
    """One sample as it is trained.

    Attributes:
        sample: where it comes from.
        spans: the whole sequence.
        num_tokens: its length.
        objects: description and box in pixels of the sample, read back from the tokens alone.
        picture: the image as it is fed to the model: turned as EXIF says, and resized.
    """

    sample: Sample
    spans: list[TokenSpan]
    num_tokens: int
    objects: list[tuple[str, BoxPx]]
    picture: Image.Image


def previews(
    config: ExperimentConfig, *, num: int, split: Split = "train", data: SplitData | None = None
) -> Iterator[Preview]:
    """Yield the first ``num`` samples in the order of training (validation: of the file).

    No weights are read: tokenizer, processor and data are enough.

    Args:
        config: one run's resolved configuration.
        num: how many.
        split: ``train`` or ``val``.
        data: the split, where it was read before.

    Raises:
        CoordExpError: whatever would stop a run because of its data or its tokenizer.
    """
    directory = find_checkpoint(config.model.path, revision=config.model.revision, weights=False)
    encoding = build_encoding(config, Processor.from_directory(directory))
    samples = (data or read_split(config, split)).samples
    dataset = encoding.dataset(samples)
    order = range(len(samples)) if split == "val" else _training_order(config, dataset.lengths)
    for index in islice(order, num):
        yield _preview(encoding, samples[index], dataset.token_ids(index))


def _training_order(config: ExperimentConfig, lengths: list[int]) -> Iterator[int]:
    return iter(
        LengthBucketSampler(
            lengths,
            batch_size=config.global_batch_size,
            seed=config.experiment.seed,
            buckets=config.data.length_buckets,
            bucket_size=config.data.bucket_size,
        )
    )


def _preview(encoding: Encoding, sample: Sample, ids: list[int]) -> Preview:
    num_prompt = len(encoding.prompt) + ids.count(encoding.prompt.image_token_id)
    roles = _roles(encoding, ids, num_prompt)
    size = fed_size(sample.width, sample.height, encoding.image_spec)
    picture = read_image(sample.image, width=sample.width, height=sample.height)
    picture = picture.resize(size, Image.Resampling(encoding.image_spec.resample))
    spans = list(_spans(encoding, ids, roles, num_prompt))
    return Preview(sample, spans, len(ids), _objects(encoding, sample, ids[num_prompt:]), picture)


def _roles(encoding: Encoding, ids: list[int], num_prompt: int) -> list[Role]:
    image_id = encoding.prompt.image_token_id
    prompt: list[Role] = ["image" if token == image_id else "prompt" for token in ids[:num_prompt]]
    answer: list[Role] = ["structure"] * (len(ids) - num_prompt)
    number_ids = encoding.vocab.numbers.ids
    for position, token in enumerate(ids[num_prompt:]):
        if token in number_ids:
            answer[position] = "coord"
    descriptions = parse_targets(torch.tensor(ids[num_prompt:]), encoding.vocab).desc_positions.tolist()
    for position in descriptions:
        answer[position] = "description"  # digits there are text
    return prompt + answer


def _spans(encoding: Encoding, ids: list[int], roles: list[Role], num_prompt: int) -> Iterator[TokenSpan]:
    start = 0
    for end in range(1, len(ids) + 1):
        if end < len(ids) and roles[end] == roles[start] and end != num_prompt:
            continue
        text = encoding.tokenizer.decode(ids[start : start + 1] if roles[start] == "image" else ids[start:end])
        if roles[start] == "image":
            text = f"{text} x {end - start}"
        yield TokenSpan(role=roles[start], text=str(text), supervised=start >= num_prompt)
        start = end


def _objects(encoding: Encoding, sample: Sample, answer: list[int]) -> list[tuple[str, BoxPx]]:
    ids = torch.tensor(answer)
    layout = parse_targets(ids, encoding.vocab)
    bins_M4 = encoding.vocab.numbers.bins(ids[layout.coord_positions])
    scale = torch.tensor([sample.width, sample.height] * 2)
    objects: list[tuple[str, BoxPx]] = []
    for number, box in enumerate((decode(bins_M4) * scale).tolist()):
        desc = ids[layout.desc_positions[layout.desc_object == number]].tolist()
        x1, y1, x2, y2 = box
        objects.append((str(encoding.tokenizer.decode(desc)), (x1, y1, x2, y2)))
    return objects
