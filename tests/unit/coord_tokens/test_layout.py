"""Sequence layout: hand-written sequences, and a regular expression as an independent parser."""

import re

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from coordexp.coord_tokens.layout import parse_targets
from coordexp.coord_tokens.vocab import CoordVocab

START, BOX, CLOSE, END, WILDCARD, C0 = 10, 11, 12, 13, 99, 100
NATIVE = CoordVocab(range(C0, C0 + 1000), WILDCARD, START, BOX, CLOSE, END, "native")
SPEC = CoordVocab(range(C0, C0 + 1000), WILDCARD, START, None, CLOSE, END, "spec")


def layout(ids, vocab=NATIVE):
    found = parse_targets(torch.tensor(ids, dtype=torch.int64), vocab)
    return {
        "coords": found.coord_positions.tolist(),
        "desc": found.desc_positions.tolist(),
        "object": found.desc_object.tolist(),
        "spans": found.object_spans.tolist(),
    }


EMPTY = {"coords": [], "desc": [], "object": [], "spans": []}


def test_two_objects_under_native():
    #      0      1   2   3    4    5    6    7    8      9      10  11   12   13   14   15   16     17
    ids = [START, 50, 51, BOX, 100, 101, 102, 103, CLOSE, START, 52, BOX, 104, 105, 999, 1099, CLOSE, END]
    assert layout(ids) == {
        "coords": [[4, 5, 6, 7], [12, 13, 14, 15]],
        "desc": [1, 2, 10],
        "object": [0, 0, 1],
        "spans": [[0, 9], [9, 17]],
    }


def test_two_objects_under_spec():
    ids = [START, 50, 51, 100, 101, 102, 103, CLOSE, START, 52, 104, 105, 106, 107, CLOSE, END]
    assert layout(ids, SPEC) == {
        "coords": [[3, 4, 5, 6], [10, 11, 12, 13]],
        "desc": [1, 2, 9],
        "object": [0, 0, 1],
        "spans": [[0, 8], [8, 15]],
    }


def test_a_prompt_before_and_padding_behind():
    ids = [5, 6, 13, 7, START, 50, BOX, 100, 101, 102, 103, CLOSE, END, -100, -100, 0]
    assert layout(ids)["coords"] == [[7, 8, 9, 10]]
    assert layout(ids)["desc"] == [5]


@pytest.mark.parametrize("ids", [[], [END], [5, 6, END], [-100, -100], [CLOSE], [100, 101, 102, 103, CLOSE]])
def test_no_object(ids):
    assert layout(ids) == EMPTY
    assert layout(ids, SPEC) == EMPTY
    assert parse_targets(torch.tensor(ids, dtype=torch.int64), NATIVE).coord_positions.shape == (0, 4)
    assert parse_targets(torch.tensor(ids, dtype=torch.int64), NATIVE).object_spans.shape == (0, 2)


def test_an_object_cut_short_gives_no_box_but_keeps_its_description():
    whole = [START, 50, BOX, 100, 101, 102, 103, CLOSE]
    for length in range(len(whole)):
        found = layout(whole + whole[:length])
        assert found["spans"] == [[0, 8]], length
        assert found["desc"] == ([1, 9] if length >= 2 else [1])
        assert found["object"] == ([0, -1] if length >= 2 else [0])


@pytest.mark.parametrize(
    "ids",
    [
        [START, BOX, 100, 101, 102, 103, CLOSE],  # no description
        [START, 50, 100, 101, 102, 103, CLOSE],  # no box marker
        [START, 50, 51, 100, 101, 102, 103, CLOSE],
        [START, 50, BOX, 100, 101, 102, CLOSE],  # three coordinates
        [START, 50, BOX, 100, 101, 102, 103, 104, CLOSE],  # five
        [START, 50, BOX, 100, 101, WILDCARD, 103, CLOSE],  # the wildcard is none
        [START, 50, BOX, 100, 101, 51, 102, 103, CLOSE],  # text between them
        [START, 50, BOX, BOX, 100, 101, 102, 103, CLOSE],
        [START, 50, BOX, 100, 101, 102, 103, END],  # never closed
        [START, 50, END, BOX, 100, 101, 102, 103, CLOSE],
        [50, BOX, 100, 101, 102, 103, CLOSE],  # never opened
    ],
)
def test_incomplete_objects_give_no_box(ids):
    assert layout(ids)["coords"] == []
    assert layout(ids)["spans"] == []


def test_a_second_opening_starts_over():
    ids = [START, 50, START, 51, BOX, 100, 101, 102, 103, CLOSE]
    assert layout(ids)["spans"] == [[2, 10]]
    assert layout(ids)["object"] == [-1, 0]


def test_one_sequence_at_a_time():
    with pytest.raises(ValueError, match=r"one sequence \[T\]"):
        parse_targets(torch.zeros(2, 3, dtype=torch.int64), NATIVE)


_IDS = {"S": START, "B": BOX, "C": C0 + 7, "E": CLOSE, "F": END, "D": 50, "N": -100, "W": WILDCARD}


@pytest.mark.parametrize(("vocab", "text", "head"), [(NATIVE, "DW", "B"), (SPEC, "DWB", "")], ids=["native", "spec"])
@given(letters=st.lists(st.sampled_from(["SDBCCCCE", "SDCCCCE", "SDD", "CCCC", *"SBCEFDNW"])))
def test_against_a_regular_expression(vocab, text, head, letters):
    letters = "".join(letters)
    whole = list(re.finditer(f"S([{text}]+){head}(CCCC)E", letters))
    begun = list(re.finditer(f"S([{text}]+)", letters))
    starts = [match.start() for match in whole]
    assert layout([_IDS[letter] for letter in letters], vocab) == {
        "coords": [list(range(*match.span(2))) for match in whole],
        "desc": [i for match in begun for i in range(*match.span(1))],
        "object": [
            starts.index(match.start()) if match.start() in starts else -1 for match in begun for _ in match.group(1)
        ],
        "spans": [list(match.span()) for match in whole],
    }
