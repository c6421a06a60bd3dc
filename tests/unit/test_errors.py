"""Words that messages share."""

import pytest

from coordexp.errors import counted


@pytest.mark.parametrize(
    ("num", "noun", "said"),
    [
        (1, "category", "1 category"),
        (0, "category", "0 categories"),
        (3, "key", "3 keys"),
        (1234, "box", "1,234 boxes"),
        (2, "image", "2 images"),
    ],
)
def test_a_number_and_its_noun(num: float, noun: str, said: str) -> None:
    assert counted(num, noun) == said
