"""The dataset: lengths without decoding, targets cut at the limit, the image cache, the order."""

import copy
import json
import os
from functools import partial

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader

from coordexp.config.schema.data import Shapes
from coordexp.coord_tokens.codec import encode
from coordexp.data import dataset as dataset_module
from coordexp.data.batch import collate
from coordexp.data.dataset import DetectionDataset
from coordexp.data.images.patches import to_patches
from coordexp.data.images.pixels import read_image
from coordexp.data.prompt import DEFAULT_PROMPT, Prompt
from coordexp.data.sources.coco.source import CocoSource
from coordexp.data.sources.shapes import write_shapes
from coordexp.errors import DataError, TokenizerError
from coordexp.train.forward import count_units, mean_units
from tests.support.samples import pairs_of


@pytest.fixture(scope="module")
def samples(tmp_path_factory):
    root = write_shapes(tmp_path_factory.mktemp("shapes") / "data", Shapes(num_train=24, num_val=1, max_objects=4))
    return CocoSource(root / "instances_train.json", root / "train").read().samples


@pytest.fixture
def make(native, prompt, image_spec, samples):
    def build(**options):
        options = {"samples": samples, "vocab": native[1], "max_objects": 30, "max_length": 4096, "seed": 0} | options
        return DetectionDataset(tokenizer=native[0], prompt=prompt, image_spec=image_spec, **options)

    return build


def same(a, b):
    return (
        a.prompt_ids == b.prompt_ids
        and a.target_ids == b.target_ids
        and np.array_equal(a.patches, b.patches)
        and a.grid == b.grid
        and np.array_equal(a.boxes_norm_xyxy, b.boxes_norm_xyxy)
        and np.array_equal(a.coord_index, b.coord_index)
        and a.image_id == b.image_id
    )


def boxes_of_tokens(sample, vocab):
    """Read the boxes back from the token ids that ``coord_index`` points at."""
    return np.array(sample.target_ids)[sample.coord_index] - vocab.coord_ids.start


def test_a_sample_fits_together(make, samples, native, prompt, image_spec):
    dataset = make()
    assert len(dataset) == len(samples) == 24
    for i, source in enumerate(samples):
        found = dataset[i]
        assert found.image_id == source.image_id
        assert found.prompt_ids == prompt.ids(found.grid[0] * found.grid[1] // 4)
        assert len(found.patches) == found.grid[0] * found.grid[1]
        assert found.patches.dtype == np.uint8
        assert len(found.boxes_norm_xyxy) == len(source.objects)
        assert found.boxes_norm_xyxy.dtype == np.float32
        assert found.coord_index.dtype == np.int64
        boxes = sorted((box for _, box in pairs_of(source.objects)), key=lambda box: box[1::-1])
        assert np.array_equal(found.boxes_norm_xyxy, np.float32(boxes))
        assert np.array_equal(boxes_of_tokens(found, native[1]), encode(boxes).numpy())
        assert found.target_ids[-1] == native[1].end_id
        wanted, grid = to_patches(read_image(source.image), image_spec)
        assert grid == found.grid
        assert np.array_equal(found.patches, wanted)


def test_lengths_are_known_before_an_image_is_opened(make, monkeypatch):
    wanted = [sample.length for sample in (make()[i] for i in range(24))]
    monkeypatch.setattr(dataset_module, "read_image", lambda *_, **__: pytest.fail("an image was decoded"))
    assert make().lengths == wanted
    assert len(set(wanted)) > 3


@pytest.mark.parametrize("structure", ["native", "spec"])
def test_lengths_of_both_structures(structure, request, prompt, image_spec, samples):
    tokenizer, vocab = request.getfixturevalue(structure)
    dataset = DetectionDataset(
        samples=samples, tokenizer=tokenizer, vocab=vocab, prompt=prompt, image_spec=image_spec,
        max_objects=2, max_length=4096, seed=0,
    )  # fmt: skip
    assert dataset.lengths == [dataset[i].length for i in range(24)]


def test_a_target_cut_at_any_length_keeps_whole_objects_only(make, native, samples):
    many = max(range(24), key=lambda i: len(samples[i].objects))
    whole = make()[many]
    assert len(whole.boxes_norm_xyxy) == 4
    closing = [i for i, token in enumerate(whole.target_ids) if token == native[1].obj_end_id]
    for length in range(len(whole.prompt_ids) + 1, whole.length + 3):
        dataset = make(samples=[samples[many]], max_length=length)
        cut = dataset[0]
        room = length - len(whole.prompt_ids)
        assert cut.target_ids == whole.target_ids[:room]
        assert dataset.lengths == [cut.length]
        assert dataset.num_cut_samples == (length < whole.length)
        num_complete = sum(place < room for place in closing)
        assert np.array_equal(cut.boxes_norm_xyxy, whole.boxes_norm_xyxy[:num_complete])
        assert np.array_equal(cut.coord_index, whole.coord_index[:num_complete])


def test_a_prompt_longer_than_the_limit_names_the_image(make, samples, prompt, image_spec):
    size = len(prompt) + image_spec.num_tokens(width=samples[0].width, height=samples[0].height)
    with pytest.raises(DataError, match=rf"000001\.jpg.* {size} .*data\.max_length.* {size}\b"):
        make(samples=samples[:1], max_length=size)
    assert make(samples=samples[:1], max_length=size + 1)[0].length == size + 1
    assert make(samples=samples[:1], max_length=size, vocab=None)[0].length == size
    with pytest.raises(DataError, match=r"data\.max_length"):
        make(samples=samples[:1], max_length=size - 1, vocab=None)


def test_the_cap_is_counted(make, samples):
    dataset = make(max_objects=2)
    numbers = [len(sample.objects) for sample in samples]
    assert dataset.num_capped_images == sum(number > 2 for number in numbers) > 0
    assert dataset.num_capped_objects == sum(max(0, number - 2) for number in numbers)
    assert max(len(dataset[i].boxes_norm_xyxy) for i in range(24)) == 2
    assert make().num_capped_images == make().num_cut_samples == 0
    assert dataset.num_target_objects == sum(len(dataset[i].boxes_norm_xyxy) for i in range(24))
    assert dataset.num_target_tokens == sum(len(dataset[i].target_ids) for i in range(24))
    everything = collate([dataset[i] for i in range(24)], pad_id=0, image_token_id=dataset._prompt.image_token_id)
    assert (24 * mean_units(dataset)).round().tolist() == count_units([everything]).tolist()


def test_without_targets(make):
    dataset = make(vocab=None)
    assert dataset[3].target_ids == []
    assert dataset[3].boxes_norm_xyxy.shape == dataset[3].coord_index.shape == (0, 4)
    assert dataset.lengths == [len(make()[i].prompt_ids) for i in range(24)]


def test_a_random_order_changes_with_epoch_and_seed_and_nothing_else(make, samples):
    many = [i for i in range(24) if len(samples[i].objects) == 4]

    def order(epoch, seed=0, **options):
        dataset = make(ordering="random", seed=seed, **options)
        dataset.set_epoch(epoch)
        return [dataset[i].target_ids for i in many]

    assert order(1) == order(1)
    assert order(1) != order(2)
    assert order(1) != order(1, seed=5)
    assert [sorted(ids) for ids in order(1)] == [sorted(ids) for ids in order(2)]
    # The cap takes the same objects in every epoch.
    assert [sorted(ids) for ids in order(1, max_objects=2)] == [sorted(ids) for ids in order(2, max_objects=2)]
    fixed = make()
    before = [fixed[i].target_ids for i in many]
    fixed.set_epoch(9)
    assert [fixed[i].target_ids for i in many] == before


def test_a_random_order_belongs_to_the_image_not_to_its_place(make, samples):
    forward, backward = (make(samples=part, ordering="random") for part in (samples, samples[::-1]))
    assert all(same(forward[i], backward[23 - i]) for i in range(24))


@pytest.fixture
def reads(monkeypatch):
    """Paths of the images that a dataset decoded."""
    found = []

    def noted(path, **size):
        found.append(path)
        return read_image(path, **size)

    monkeypatch.setattr(dataset_module, "read_image", noted)
    return found


def test_the_cache_changes_nothing(make, reads):
    plain, cached = make(), make(image_cache_mib=1)
    for _ in range(2):
        assert all(same(plain[i], cached[i]) for i in range(24))
    assert len(reads) == 24 * 2 + 24


def test_a_filler_is_the_image_without_anything_to_learn(make, samples):
    dataset = make()
    for i in (0, 5):
        filler, sample = dataset[~i], dataset[i]
        assert filler.is_filler
        assert not sample.is_filler
        assert filler.prompt_ids == sample.prompt_ids
        assert np.array_equal(filler.patches, sample.patches)
        assert filler.target_ids == []
        assert filler.boxes_norm_xyxy.shape == filler.coord_index.shape == (0, 4)
        assert filler.length < sample.length


def one_sample(folder):
    document = {
        "images": [{"id": 1, "file_name": "a.png", "width": 96, "height": 96}],
        "annotations": [],
        "categories": [],
    }
    (folder / "a.json").write_text(json.dumps(document))
    return CocoSource(folder / "a.json", folder).read().samples[0]


def test_a_bad_image_is_named_when_it_is_used(make, tmp_path):
    Image.new("RGB", (96, 96)).save(tmp_path / "a.png")
    sample = one_sample(tmp_path)
    dataset = make(samples=[sample])
    Image.new("RGB", (96, 80)).save(tmp_path / "a.png")
    with pytest.raises(DataError, match=r"a\.png.*96 x 80.*96 x 96"):
        _ = dataset[0]
    Image.new("RGB", (96, 96)).save(tmp_path / "a.png")
    os.truncate(tmp_path / "a.png", 60)
    with pytest.raises(DataError, match=r"a\.png"):
        _ = dataset[0]


def test_a_bad_description_is_named_before_training(make, coco):
    coco.document["categories"][0]["name"] = "cat<|box_end|>"
    coco.save()
    samples = CocoSource(coco.annotations, coco.images).read().samples
    with pytest.raises(DataError, match=r"a\.jpg.*cat<\|box_end\|>"):
        make(samples=samples)


def test_real_coco(make, coco_tiny, native):
    images = coco_tiny / "images" / "train2017"
    samples = CocoSource(coco_tiny / "annotations" / "instances_train2017.json", images).read().samples
    dataset = make(samples=samples)
    for i in range(len(samples)):
        found = dataset[i]
        assert found.length == dataset.lengths[i]
        error = np.abs(boxes_of_tokens(found, native[1]) / 1000 - found.boxes_norm_xyxy)
        assert (error <= np.where(found.boxes_norm_xyxy > 0.9995, 0.001, 0.0005) + 1e-6).all()  # 1.0 is bin 999


@pytest.mark.parametrize("num_workers", [0, 1])
def test_a_loader_gives_batches_whose_labels_are_coord_tokens(make, native, prompt, num_workers):
    coord_ids = native[1].coord_ids
    to_batch = partial(collate, pad_id=0, image_token_id=prompt.image_token_id)

    def batches(workers):
        return list(DataLoader(make(), batch_size=8, num_workers=workers, collate_fn=to_batch))

    for batch, alone in zip(batches(num_workers), batches(0), strict=True):
        bins = batch.targets[batch.coord_rows[batch.box_rows]] - coord_ids.start
        # The boxes are float32: a half may round to the neighbouring bin.
        torch.testing.assert_close(bins / 1000, batch.boxes_norm_xyxy, rtol=0, atol=0.0005 + 1e-6)
        tensors = {name: value for name, value in vars(batch).items() if isinstance(value, torch.Tensor)}
        assert all(torch.equal(value, vars(alone)[name]) for name, value in tensors.items())


def test_the_prompt_word_by_word(native, prompt):
    tokenizer = native[0]
    assert tokenizer.decode(prompt.ids(3)) == (
        "<|im_start|>user\n<|vision_start|><|image_pad|><|image_pad|><|image_pad|><|vision_end|>"
        f"{DEFAULT_PROMPT}<|im_end|>\n<|im_start|>assistant\n"
    )
    assert len(prompt) + 3 == len(prompt.ids(3))
    assert tokenizer.convert_ids_to_tokens(prompt.image_token_id) == "<|image_pad|>"


def test_no_chat_template(native):
    tokenizer = copy.deepcopy(native[0])
    tokenizer.chat_template = None
    with pytest.raises(TokenizerError, match="chat_template"):
        Prompt.build(tokenizer)


@pytest.mark.parametrize(
    "template",
    ["{% for m in messages %}{{ m.role }}{% endfor %}", "<|image_pad|><|image_pad|>"],
    ids=["no image", "two images"],
)
def test_a_template_must_place_one_image(native, template):
    tokenizer = copy.deepcopy(native[0])
    tokenizer.chat_template = template
    with pytest.raises(TokenizerError, match=r"<\|image_pad\|>"):
        Prompt.build(tokenizer)


def test_an_image_token_in_the_text_is_refused(native):
    with pytest.raises(TokenizerError, match=r"<\|image_pad\|>"):
        Prompt.build(native[0], "What is <|image_pad|>?")
