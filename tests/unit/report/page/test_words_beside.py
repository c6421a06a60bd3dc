"""Words of boxes stand within their picture, at their own box and not over each other."""

import pytest

from coordexp.report.page.words_beside import MAX_WORDS, Word, words_beside
from coordexp.report.study.gallery import GalleryBox

WIDTH, HEIGHT = 170, 120  # letters of 10 px


def placed(*boxes: tuple[float, float, float, float], name: str = "red circle") -> list[Word]:
    return words_beside([GalleryBox(box, name) for box in boxes], WIDTH, HEIGHT)


def test_a_word_stands_at_the_top_within_a_high_box_and_above_a_flat_one() -> None:
    (high,), (flat,) = placed((20, 30, 80, 60)), placed((20, 30, 80, 15))
    assert (high.text, high.x, high.y, high.size) == ("red circle", 22.0, 40.0, 10.0)
    assert (flat.x, flat.y) == (22.0, 27.0)


def test_of_two_boxes_in_one_place_the_second_word_gets_out_of_the_way() -> None:
    first, second = placed((20, 30, 80, 60), (20, 30, 80, 60))
    assert (first.y, second.y) == (40.0, 27.0), "in the box, and above it"


@pytest.mark.parametrize(
    "box", [(150, 40, 20, 60), (0, 0, 170, 120), (-8, -8, 12, 12), (160, 112, 10, 8), (0, 118, 170, 2), (5, 0, 9, 4)]
)
def test_a_word_is_whole_within_the_picture(box: tuple[float, float, float, float]) -> None:
    (word,) = placed(box)
    assert 0 <= word.x <= WIDTH - 0.6 * word.size * len(word.text)
    assert word.size <= word.y <= HEIGHT


def test_a_word_that_is_longer_than_the_picture_is_cut() -> None:
    (word,) = placed((60, 40, 40, 40), name="a description that nobody can read here")
    assert word.text == "a description that nobody…"
    assert word.x < 8


def test_more_words_than_one_can_read_are_left_out() -> None:
    assert len(placed(*[(10.0, 10.0, 50.0, 50.0)] * 20)) == MAX_WORDS
    assert placed() == []
