"""Our processor against the data pipeline that training uses, and through save and load."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from coordexp.data.images.patches import ImageSpec, pixel_values, to_patches
from coordexp.data.prompt import DEFAULT_PROMPT, Prompt
from coordexp.data.shapes import draw_scene
from coordexp.errors import CheckpointError
from coordexp.model.processor import Processor, StoredProcessor

VIDEO = "video_preprocessor_config.json"
MESSAGES = [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": DEFAULT_PROMPT}]}]


@pytest.fixture(scope="module")
def processor(make_base) -> Processor:
    return Processor.from_directory(make_base())


@pytest.fixture(scope="module")
def save(make_base) -> Callable[[Processor, Path], None]:
    """Return what saves a processor beside the configuration of its model."""

    def save_beside_model(processor: Processor, directory: Path) -> None:
        processor.save_pretrained(directory)
        shutil.copy(make_base() / "config.json", directory)

    return save_beside_model


def test_it_gives_what_training_gives(processor):
    picture, _ = draw_scene(np.random.default_rng(0))
    spec = ImageSpec.from_processor(processor.image_processor)
    patches, grid = to_patches(picture, spec)
    encoded = processor(text=processor.apply_chat_template(MESSAGES, add_generation_prompt=True), images=picture)
    expected = Prompt.build(processor.tokenizer).ids(spec.num_tokens(width=picture.width, height=picture.height))
    assert encoded["input_ids"].tolist() == [expected]
    assert encoded["image_grid_thw"].tolist() == [[1, *grid]]
    assert torch.equal(encoded["pixel_values"], pixel_values(torch.from_numpy(patches), spec))
    image_token = processor.tokenizer.convert_tokens_to_ids("<|image_pad|>")
    assert encoded["mm_token_type_ids"].tolist() == [[int(token == image_token) for token in expected]]


def test_a_batch_of_unequal_images_is_padded(processor):
    pictures = [
        draw_scene(np.random.default_rng(seed))[0].resize(size) for seed, size in ((0, (96, 96)), (1, (48, 96)))
    ]
    text = processor.apply_chat_template(MESSAGES)
    encoded = processor(text=[text, text], images=pictures)
    alone = [processor(text=text, images=picture)["input_ids"][0] for picture in pictures]
    assert encoded["attention_mask"].sum(dim=1).tolist() == [len(ids) for ids in alone]
    for row, ids in enumerate(alone):
        assert encoded["input_ids"][row][encoded["attention_mask"][row] == 1].tolist() == ids.tolist()


def test_save_and_load_keep_everything(processor, save, tmp_path):
    with_video = Processor(processor.tokenizer, processor.image_processor, {**processor.files, VIDEO: '{"fps": 2}'})
    save(with_video, tmp_path)
    again = Processor.from_directory(tmp_path)
    assert again.tokenizer.chat_template == processor.tokenizer.chat_template
    assert again.tokenizer.get_vocab() == processor.tokenizer.get_vocab()
    assert again.image_processor.to_dict() == processor.image_processor.to_dict()
    assert again.files[VIDEO] == '{"fps": 2}'


def test_files_of_the_processors_are_carried_along_unchanged(processor, save, tmp_path):
    first, second = tmp_path / "first", tmp_path / "second"
    save(processor, first)
    file = first / "preprocessor_config.json"
    # As published: a class that needs torchvision here, and the name of the whole processor.
    published = {"image_processor_type": "Qwen2VLImageProcessorFast", "processor_class": "Qwen3VLProcessor"}
    text = json.dumps(json.loads(file.read_text()) | published)
    file.write_text(text)
    Processor.from_directory(first).save_pretrained(second)
    assert (second / file.name).read_text() == text
    assert "local_files_only" not in (second / "tokenizer_config.json").read_text()


@pytest.mark.parametrize(
    ("stated", "is_read"),
    [
        ({}, True),
        ({"rescale_factor": None}, True),  # None: left out, as the published files do
        ({"image_mean": [0.48, 0.45, 0.4], "resample": 2, "size": {"shortest_edge": 16, "longest_edge": 4096}}, True),
        ({"merge_size": None}, False),
        ({"min_pixels": 64, "max_pixels": 1024}, False),
    ],
)
def test_the_numbers_in_the_file_are_those_of_the_class(processor, save, tmp_path, stated, is_read):
    save(processor, tmp_path)
    file = tmp_path / "preprocessor_config.json"
    settings = json.loads(file.read_text()) | stated
    file.write_text(json.dumps({key: value for key, value in settings.items() if value is not None}))
    stored = StoredProcessor.from_directory(tmp_path)
    assert isinstance(stored, StoredProcessor) == is_read
    if is_read:
        whole = Processor.from_directory(tmp_path)
        assert ImageSpec.from_processor(stored.image_processor) == ImageSpec.from_processor(whole.image_processor)
        assert stored.tokenizer.get_vocab() == whole.tokenizer.get_vocab()


def test_the_limits_are_those_of_the_file_that_transformers_takes_first(processor, save, tmp_path):
    save(processor, tmp_path)
    section = json.loads((tmp_path / "preprocessor_config.json").read_text())
    limits = {"shortest_edge": 1024, "longest_edge": 65_536}
    assert dict(processor.image_processor.size) != limits
    (tmp_path / "processor_config.json").write_text(json.dumps({"image_processor": {**section, "size": limits}}))
    for kind in (Processor, StoredProcessor):
        assert dict(kind.from_directory(tmp_path).image_processor.size) == limits
    save(Processor.from_directory(tmp_path), tmp_path / "saved")
    assert dict(Processor.from_directory(tmp_path / "saved").image_processor.size) == limits


@pytest.mark.parametrize("kind", [Processor, StoredProcessor])
@pytest.mark.parametrize(
    ("stated", "facts"),
    [
        ({"size": {"height": 32, "width": 32}}, "shortest_edge.*longest_edge"),
        (None, r"\(14, 2, 2\).*\(8, 2, 2\)"),  # nothing is stated
    ],
)
@pytest.mark.parametrize("name", ["preprocessor_config.json", "processor_config.json"])
def test_images_that_the_model_does_not_take_are_refused_in_either_file(
    processor, save, tmp_path, name, stated, facts, kind
):
    save(processor, tmp_path)
    file = tmp_path / "preprocessor_config.json"
    settings = {} if stated is None else json.loads(file.read_text()) | stated
    if name != file.name:
        file.write_text(json.dumps({"size": 7}))  # overruled, so that nothing reads it
    content = settings if name == file.name else {"image_processor": settings}
    (tmp_path / name).write_text(json.dumps(content))
    with pytest.raises(CheckpointError, match=facts) as raised:
        kind.from_directory(tmp_path)
    assert str(tmp_path if stated is None else tmp_path / name) in str(raised.value)
