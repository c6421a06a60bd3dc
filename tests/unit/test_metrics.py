import pytest

from coordexp.metrics import (
    REGISTRY,
    best_name,
    detection_metric,
    evaluation_metric,
    find_metric,
    is_better,
    is_registered,
    unregistered,
)

DESIGN_NAMES = [
    "train_total_loss",
    "eval_coord_ce_loss",
    "coord_diag/w1",
    "eval_coord_diag/inverted_fraction",
    "constrained/argmax/AP_small",
    "free/expected/AR100",
    "subset/constrained/expected/AP",
    "free/malformed",
    "free/malformed/too_few_coords",
    "subset/free/malformed/unclosed",
    "throughput/mfu",
    "grad_norm",
    "grad_norm/box_giou",
    "train_extra/my_term",
    "codec_ceiling/AP",
    "best/subset/constrained/expected/AP",
]


@pytest.mark.parametrize("name", DESIGN_NAMES)
def test_the_names_of_the_design_are_registered(name: str) -> None:
    assert is_registered(name)


@pytest.mark.parametrize(
    "name", ["", "AP", "constrained/AP", "beam/expected/AP", "free/malformed/", "free/malformed/A B", "grad_norm/a/b"]
)
def test_other_names_are_not(name: str) -> None:
    assert not is_registered(name)


def test_unregistered_names_are_listed_once_and_sorted() -> None:
    assert unregistered(["zz", "epoch", "aa", "zz"]) == ["aa", "zz"]


def test_names_are_built_and_checked() -> None:
    assert detection_metric("constrained", "expected", "AP") == "constrained/expected/AP"
    assert detection_metric("free", "argmax", "AP50", subset=True) == "subset/free/argmax/AP50"
    assert evaluation_metric("free", "malformed/unclosed") == "free/malformed/unclosed"
    with pytest.raises(ValueError, match="AP51"):
        detection_metric("free", "argmax", "AP51")


def test_every_registered_name_says_what_it_is() -> None:
    assert all(name == metric.name and metric.description for name, metric in REGISTRY.items())


def test_direction_decides_what_is_better() -> None:
    assert is_better("constrained/expected/AP", 0.4, than=0.3)
    assert is_better("eval_total_loss", 0.3, than=0.4)
    assert not is_better("eval_total_loss", 0.3, than=0.3)
    with pytest.raises(ValueError, match="epoch"):
        is_better("epoch", 1, than=2)


def test_only_curves_that_can_pass_their_best_have_a_best_name() -> None:
    assert best_name("eval_total_loss") == "best/eval_total_loss"
    assert best_name("constrained/expected/AP") is None


def test_a_family_describes_its_members() -> None:
    metric = find_metric("grad_norm/text_ce")
    assert metric is not None
    assert metric.name == "grad_norm/{term}"
