"""What a model is trained on, for a person to look at: tokens by role, and boxes read back from them."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby, islice
from typing import Literal

import torch
from PIL import Image

from coordexp.config.schema import RunConfig
from coordexp.coord_tokens.codec import decode
from coordexp.coord_tokens.layout import SequenceLayout, parse_targets
from coordexp.data.images.pixels import read_image
from coordexp.data.sample import Sample, Split
from coordexp.data.split_data import SplitData
from coordexp.model.checkpoint.directory import find_checkpoint
from coordexp.model.processor import Processor
from coordexp.train.setup.data import read_split
from coordexp.train.setup.encoding import Encoding, build_encoding, train_order

Role = Literal["prompt", "image", "description", "coord", "structure"]
BoxPx = tuple[float, float, float, float]


@dataclass(frozen=True)
class TokenSpan:
    """Neighbouring tokens of one role."""

    role: Role
    text: str  # as the tokenizer writes them; of image tokens, the first and their number
    supervised: bool  # whether a loss reads them


@dataclass(frozen=True)
class Preview:
    """One sample as it is trained."""

    sample: Sample
    spans: list[TokenSpan]  # the whole sequence
    num_tokens: int
    objects: list[tuple[str, BoxPx]]  # description and box (pixels, xyxy), read back from the tokens alone
    picture: Image.Image  # as the model sees it: turned as EXIF says, and resized


def previews(
    config: RunConfig, *, num: int, split: Split = "train", data: SplitData | None = None
) -> Iterator[Preview]:
    """Yield the first samples of a split as they are trained.

    No weights are read: tokenizer, processor and data are enough, and they raise what would stop a run.

    Args:
        config: the run.
        num: samples to yield at most.
        split: training samples come in the order of training, validation samples in the order of their file.
        data: the split, if it has been read already.
    """
    directory = find_checkpoint(config.model.path, revision=config.model.revision, weights=False)
    encoding = build_encoding(config, Processor.from_directory(directory))
    samples = (data or read_split(config, split)).samples
    dataset = encoding.dataset(samples)
    order = range(len(samples)) if split == "val" else train_order(config, dataset.lengths)
    for index in islice(order, num):
        yield _preview(encoding, samples[index], dataset.token_ids(index))


def _preview(encoding: Encoding, sample: Sample, ids: list[int]) -> Preview:
    num_prompt = len(encoding.prompt) + ids.count(encoding.prompt.image_token_id)
    answer_ids = torch.tensor(ids[num_prompt:])
    layout = parse_targets(answer_ids, encoding.vocab)
    size = encoding.image_spec.fed_size(sample.width, sample.height)
    picture = read_image(sample.image, width=sample.width, height=sample.height)
    return Preview(
        sample=sample,
        spans=_spans(encoding, ids, num_prompt=num_prompt, layout=layout),
        num_tokens=len(ids),
        objects=_objects(encoding, sample, answer_ids, layout),
        picture=picture.resize(size, Image.Resampling(encoding.image_spec.resample)),
    )


def _spans(encoding: Encoding, ids: list[int], *, num_prompt: int, layout: SequenceLayout) -> list[TokenSpan]:
    """Cut a sequence where the role of its tokens changes, and between prompt and answer."""
    image_id = encoding.prompt.image_token_id
    number_ids = encoding.vocab.numbers.ids
    prompt_roles: list[Role] = ["image" if token == image_id else "prompt" for token in ids[:num_prompt]]
    answer_roles: list[Role] = ["coord" if token in number_ids else "structure" for token in ids[num_prompt:]]
    for position in layout.desc_positions.tolist():
        answer_roles[position] = "description"  # also digits, which are text in a description
    roles = prompt_roles + answer_roles

    spans: list[TokenSpan] = []
    for (role, supervised), places in groupby(range(len(ids)), key=lambda place: (roles[place], place >= num_prompt)):
        tokens = [ids[place] for place in places]
        if role == "image":
            text = f"{encoding.tokenizer.decode(tokens[:1])} x {len(tokens)}"
        else:
            text = str(encoding.tokenizer.decode(tokens))
        spans.append(TokenSpan(role, text, supervised))
    return spans


def _objects(
    encoding: Encoding, sample: Sample, answer_ids: torch.Tensor, layout: SequenceLayout
) -> list[tuple[str, BoxPx]]:
    """Read descriptions and boxes back from the tokens of an answer."""
    bins_M4 = encoding.vocab.numbers.bins(answer_ids[layout.coord_positions])
    boxes_px_xyxy = decode(bins_M4) * torch.tensor([sample.width, sample.height] * 2)
    objects: list[tuple[str, BoxPx]] = []
    for number, (x1, y1, x2, y2) in enumerate(boxes_px_xyxy.tolist()):
        desc_ids = answer_ids[layout.desc_positions[layout.desc_object == number]].tolist()
        objects.append((str(encoding.tokenizer.decode(desc_ids)), (x1, y1, x2, y2)))
    return objects
