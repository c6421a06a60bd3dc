import pytest

from coordexp.detection.names.categories import CategoryIndex, fold
from coordexp.errors import DataError


@pytest.mark.parametrize(
    ("text", "folded"),
    [
        ("Traffic  Light", "traffic light"),
        (" traffic\tlight\n", "traffic light"),
        ("\uff54\uff52\uff41\uff46\uff46\uff49\uff43\u00a0light", "traffic light"),
        ("STRASSE", "strasse"),
        ("Straße", "strasse"),
        ("cafe\u0301", "caf\u00e9"),
    ],
)
def test_fold(text: str, folded: str) -> None:
    assert fold(text) == folded
    assert fold(folded) == folded


def test_find_names_aliases_and_nothing_else() -> None:
    index = CategoryIndex({3: "Traffic Light", 7: "dog"}, aliases={"Puppy": "DOG", "dog": "dog"})
    assert [index.find(t) for t in ("traffic light", " DOG ", "puppy")] == [3, 7, 7]
    assert [index.find(t) for t in ("traffic lights", "", "do g")] == [None, None, None]


@pytest.mark.parametrize(
    ("names", "aliases", "facts"),
    [
        ({1: "dog", 2: "Dog "}, {}, "category 2.*'Dog '.*category 1"),
        ({1: "dog", 2: " "}, {}, "category 2.*' '"),
        ({1: "dog", 2: "cat"}, {"DOG": "cat"}, "'DOG'.*category 1"),
        ({1: "dog", 2: "cat"}, {"pet": "dog", "Pet": "cat"}, "'Pet'.*category 1"),
        ({1: "dog"}, {"puppy": "wolf"}, "'puppy'.*'wolf'"),
    ],
)
def test_ambiguity_is_refused(names: dict[int, str], aliases: dict[str, str], facts: str) -> None:
    with pytest.raises(DataError, match=facts):
        CategoryIndex(names, aliases=aliases)
