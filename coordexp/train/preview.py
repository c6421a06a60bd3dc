"""What a model is trained on, for a person to look at: tokens by role, and boxes read back from them."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby, islice
from typing import Literal

import torch
from PIL import Image

from coordexp.config.schema import RunConfig
from coordexp.coord_tokens.codec import decode
from coordexp.coord_tokens.layout import parse_targets
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
    """Neighbouring tokens of one role, as the tokenizer writes them; of many image tokens, one and their number."""

    role: Role
    text: str
    supervised: bool


@dataclass(frozen=True)
class Preview:
    """One sample as it is trained."""

    sample: Sample
    spans: list[TokenSpan]  # the whole sequence
    num_tokens: int
    objects: list[tuple[str, BoxPx]]  # with boxes in pixels of the sample, read back from the tokens alone
    picture: Image.Image  # as it is fed to the model: turned as EXIF says, and resized


def previews(
    config: RunConfig, *, num: int, split: Split = "train", data: SplitData | None = None
) -> Iterator[Preview]:
    """Yield the first ``num`` samples in the order of training (validation: of the file).

    No weights are read: tokenizer, processor and data are enough, and raise what would stop a run.
    """
    directory = find_checkpoint(config.model.path, revision=config.model.revision, weights=False)
    encoding = build_encoding(config, Processor.from_directory(directory))
    samples = (data or read_split(config, split)).samples
    dataset = encoding.dataset(samples)
    order = range(len(samples)) if split == "val" else train_order(config, dataset.lengths)
    for index in islice(order, num):
        yield _preview(encoding, samples[index], dataset.token_ids(index))


def _preview(encoding: Encoding, sample: Sample, ids: list[int]) -> Preview:
    image_id, numbers = encoding.prompt.image_token_id, encoding.vocab.numbers
    num_prompt = len(encoding.prompt) + ids.count(image_id)
    answer = torch.tensor(ids[num_prompt:])
    layout = parse_targets(answer, encoding.vocab)

    prompt: list[Role] = ["image" if token == image_id else "prompt" for token in ids[:num_prompt]]
    answered: list[Role] = ["coord" if token in numbers.ids else "structure" for token in ids[num_prompt:]]
    for position in layout.desc_positions.tolist():
        answered[position] = "description"  # digits there are text
    roles = prompt + answered
    spans: list[TokenSpan] = []
    for (role, supervised), places in groupby(range(len(ids)), key=lambda at: (roles[at], at >= num_prompt)):
        tokens = [ids[at] for at in places]
        is_image = role == "image"
        text = str(encoding.tokenizer.decode(tokens[:1] if is_image else tokens))
        spans.append(TokenSpan(role, f"{text} x {len(tokens)}" if is_image else text, supervised))

    scale = torch.tensor([sample.width, sample.height] * 2)
    objects: list[tuple[str, BoxPx]] = []
    for number, (x1, y1, x2, y2) in enumerate((decode(numbers.bins(answer[layout.coord_positions])) * scale).tolist()):
        desc = answer[layout.desc_positions[layout.desc_object == number]].tolist()
        objects.append((str(encoding.tokenizer.decode(desc)), (x1, y1, x2, y2)))
    size = encoding.image_spec.fed_size(sample.width, sample.height)
    picture = read_image(sample.image, width=sample.width, height=sample.height)
    picture = picture.resize(size, Image.Resampling(encoding.image_spec.resample))
    return Preview(sample, spans, len(ids), objects, picture)
