"""Diagnostics by slot and by rank against a plain loop over boxes, and through averages, resumes and names."""

from dataclasses import replace

import pytest
import torch

from coordexp.metrics import PLACE_MEASURES, PLACES, RANKS, SLOTS, find_metric
from coordexp.train.loop.measures import RunningAverages, coord_diagnostics
from tests.support.by_hand import FIRST_ID, VOCABULARY, inputs_by_hand

NUM_BOXES = 14


@pytest.fixture
def inputs():
    """Fourteen boxes of two images, ten and four objects, and three tokens of an object that was cut."""
    generator = torch.Generator().manual_seed(3)
    boxes_M4 = torch.rand(NUM_BOXES, 4, generator=generator)
    bins = torch.cat([(boxes_M4.flatten() * 1000).long(), torch.tensor([1, 2, 3])])
    logits_TV = 3 * torch.randn(len(bins), VOCABULARY, generator=generator)
    logits_TV.scatter_add_(1, (bins + FIRST_ID + 4).unsqueeze(1), torch.full((len(bins), 1), 9.0))
    objects_M = torch.tensor([*range(10), *range(4)])
    return replace(inputs_by_hand(logits_TV, bins + FIRST_ID, boxes_M4), box_object_M=objects_M)


def rank_of(number: int) -> str:
    """The class of the object at this place of its answer, from 0, as a person would say it."""
    if number == 0:
        return "rank_1"
    if number == 1:
        return "rank_2"
    if number <= 3:
        return "rank_3_4"
    return "rank_5_8" if number <= 7 else "rank_9_up"


def plain_means(inputs) -> dict[str, float]:
    """Every mean, by a loop over boxes and slots."""
    values: dict[str, list[float]] = {}
    for box, number in enumerate(inputs.box_object_M.tolist()):
        for slot, row in zip(SLOTS, inputs.box_rows_M4[box].tolist(), strict=True):
            p_K = inputs.head.coord_logits_NK[row].double().softmax(0)
            bins_K = torch.arange(1000.0, dtype=torch.float64)
            mean, likeliest = float(p_K @ bins_K), int(p_K.argmax())
            true_bin = int(inputs.coord_bins_N[row])
            measured = {
                "expected_bin_mae": abs(mean - true_bin),
                "argmax_bin_mae": abs(likeliest - true_bin),
                "entropy": -float((p_K * p_K.log()).sum()),
                "width": float(p_K @ (bins_K - mean) ** 2) ** 0.5,
                "far_10_fraction": float(abs(mean - likeliest) > 10),
                "far_50_fraction": float(abs(mean - likeliest) > 50),
            }
            for measure, value in measured.items():
                for place in (slot, rank_of(number)):
                    values.setdefault(f"{measure}/{place}", []).append(value)
    return {name: sum(numbers) / len(numbers) for name, numbers in values.items()}


def means_of(*several) -> dict[str, float]:
    averages = RunningAverages()
    for inputs in several:
        averages.add_diagnostics(coord_diagnostics(inputs))
    return {name: mean for name, mean in averages.read()[0].items() if "/" in name}


def part_of(inputs, boxes: slice):
    """The same tokens, of which only some boxes are known."""
    names = ("box_rows_M4", "boxes_norm_xyxy_M4", "box_image_M", "box_object_M")
    return replace(inputs, **{name: getattr(inputs, name)[boxes] for name in names})


def test_means_are_those_of_a_plain_loop(inputs):
    expected = plain_means(inputs)
    assert len(expected) == len(PLACE_MEASURES) * len(PLACES) == 54
    assert 0 < expected["far_10_fraction/x1"] < 1
    assert means_of(inputs) == pytest.approx(expected, rel=1e-5)


def test_microbatches_add_up(inputs):
    halves = part_of(inputs, slice(0, 5)), part_of(inputs, slice(5, None))
    assert means_of(*halves) == pytest.approx(means_of(inputs))


def test_a_rank_without_objects_has_no_mean(inputs):
    means = means_of(part_of(inputs, slice(0, 4)))
    assert {name.rpartition("/")[2] for name in means} == {*SLOTS, "rank_1", "rank_2", "rank_3_4"}


def test_a_resumed_run_goes_on_from_what_was_added(inputs, tmp_path):
    averages = RunningAverages()
    averages.add_diagnostics(coord_diagnostics(part_of(inputs, slice(0, 5))))
    averages.save(tmp_path)
    resumed = RunningAverages()
    resumed.resume(tmp_path)
    resumed.add_diagnostics(coord_diagnostics(part_of(inputs, slice(5, None))))
    assert {name: mean for name, mean in resumed.read()[0].items() if "/" in name} == pytest.approx(means_of(inputs))


def test_the_classes_of_ranks_are_as_their_names_say():
    classes = {name: [n for n in range(20) if rank_of(n) == name] for name in RANKS}
    assert {name: numbers[0] for name, numbers in classes.items()} == RANKS


@pytest.mark.parametrize("prefix", ["coord_diag", "eval_coord_diag"])
def test_every_name_is_in_the_registry(prefix):
    for measure in PLACE_MEASURES:
        for place in PLACES:
            assert find_metric(f"{prefix}/{measure}/{place}") is not None
    assert find_metric(f"{prefix}/width/x3") is None
