"""Sequence layout: hand-written sequences, and two independent parsers: a slow loop and a regular expression."""

import random
import re

import pytest
import torch
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from coordexp.coord_tokens.layout import parse_targets
from coordexp.coord_tokens.vocab import CoordVocab
from tests.unit.coord_tokens.operation_support import CountOperations

START, BOX, CLOSE, END, WILDCARD, C0 = 10, 11, 12, 13, 99, 100
NATIVE = CoordVocab(range(C0, C0 + 1000), WILDCARD, START, BOX, CLOSE, END, "native")
SPEC = CoordVocab(range(C0, C0 + 1000), WILDCARD, START, None, CLOSE, END, "spec")

# A busy machine is no failure.
UNHURRIED = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])


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


@pytest.mark.parametrize("vocab", [NATIVE, SPEC], ids=["native", "spec"])
def test_coordinates_at_the_very_start_borrow_no_description_from_the_end(vocab):
    head = [BOX] if vocab is NATIVE else []
    for end in ([START, 50], [50, START, 51, 52]):
        found = layout([*head, 100, 101, 102, 103, CLOSE, *end], vocab)
        assert found["spans"] == found["coords"] == []


def test_a_second_opening_starts_over():
    ids = [START, 50, START, 51, BOX, 100, 101, 102, 103, CLOSE]
    assert layout(ids)["spans"] == [[2, 10]]
    assert layout(ids)["object"] == [-1, 0]


def test_one_sequence_at_a_time():
    with pytest.raises(ValueError, match=r"one sequence \[T\]"):
        parse_targets(torch.zeros(2, 3, dtype=torch.int64), NATIVE)


# Two independent parsers


def slow_layout(ids, vocab):
    """Read token by token: the state is what the current object has so far."""
    objects, desc = [], []
    start, state, coords = None, "outside", []
    for position, token in enumerate(ids):
        is_coord = token in vocab.coord_ids
        is_marker = token < 0 or token in (vocab.box_start_id, vocab.obj_end_id, vocab.end_id)
        has_desc = bool(desc) and desc[-1][1] == start
        if token == vocab.obj_start_id:
            start, state, coords = position, "description", []
        elif state == "description" and not is_coord and not is_marker:
            desc.append((position, start))
        elif state == "description" and has_desc and token == vocab.box_start_id:
            state = "box"
        elif state == "description" and has_desc and is_coord and vocab.box_start_id is None:
            state, coords = "box", [position]
        elif state == "box" and is_coord and len(coords) < 4:
            coords.append(position)
        elif state == "box" and token == vocab.obj_end_id and len(coords) == 4:
            objects.append((start, position + 1, coords))
            state = "outside"
        else:
            state = "outside"
    starts = [begin for begin, _, _ in objects]
    return {
        "coords": [coords for _, _, coords in objects],
        "desc": [position for position, _ in desc],
        "object": [starts.index(begin) if begin in starts else -1 for _, begin in desc],
        "spans": [[begin, end] for begin, end, _ in objects],
    }


def random_sequence(rng, vocab):
    """A prompt, objects, an end and padding; half of the time damaged; at times cut."""
    ids = [rng.choice([5, 6, END, 50]) for _ in range(rng.randrange(4))]
    for _ in range(rng.randrange(5)):
        ids.append(START)
        ids.extend(rng.randrange(40, 99) for _ in range(rng.randrange(1, 5)))
        if vocab.box_start_id is not None:
            ids.append(BOX)
        ids.extend(C0 + rng.randrange(1000) for _ in range(4))
        ids.append(CLOSE)
    ids.append(END)
    if rng.random() < 0.5:
        for _ in range(rng.randrange(1, 4)):
            at = rng.randrange(len(ids) + 1)
            token = rng.choice([START, BOX, CLOSE, END, WILDCARD, 50, C0, C0 + 999, C0 - 1, C0 + 1000, -100, 0])
            match rng.randrange(4):
                case 0:
                    ids.insert(at, token)
                case 1:
                    ids[at : at + 1] = [token]
                case 2:
                    del ids[at : at + rng.randrange(1, 4)]
                case _:
                    other = rng.randrange(len(ids) + 1)
                    ids[at : at + 1], ids[other : other + 1] = ids[other : other + 1], ids[at : at + 1]
    if rng.random() < 0.3:
        ids = ids[: rng.randrange(len(ids) + 1)]
    return ids + [-100] * rng.randrange(3)


# 10,000 random sequences: 25 examples, each of 200 sequences from a seed that hypothesis draws, for
# each of the two structures; phases and derandomize keep their number fixed.
@pytest.mark.parametrize("vocab", [NATIVE, SPEC], ids=["native", "spec"])
@settings(max_examples=25, phases=[Phase.generate], derandomize=True, database=None, deadline=None)
@given(seed=st.integers(0, 2**63 - 1))
def test_against_a_slow_parser(vocab, seed):
    rng = random.Random(seed)
    num_objects = num_cut = 0
    for _ in range(200):
        ids = random_sequence(rng, vocab)
        expected = slow_layout(ids, vocab)
        assert layout(ids, vocab) == expected, ids
        num_objects += len(expected["spans"])
        num_cut += -1 in expected["object"]
    assert num_objects > 200  # the corpus holds what the test is about
    assert num_cut > 10


def test_the_slow_parser_sees_a_wrong_layout():
    ids = [START, 50, BOX, 100, 101, 102, 103, CLOSE]
    assert slow_layout(ids, NATIVE) == layout(ids)
    assert slow_layout(ids[:-1], NATIVE) != layout(ids)
    assert slow_layout(ids, SPEC) != layout(ids)


@UNHURRIED
@given(st.lists(st.sampled_from([START, BOX, CLOSE, END, C0, C0 + 999, 50, -100, WILDCARD]), max_size=40))
def test_any_soup_of_tokens(ids):
    assert layout(ids) == slow_layout(ids, NATIVE)
    assert layout(ids, SPEC) == slow_layout(ids, SPEC)


_IDS = {"S": START, "B": BOX, "C": C0 + 7, "E": CLOSE, "F": END, "D": 50, "N": -100, "W": WILDCARD}


@pytest.mark.parametrize(("vocab", "text", "head"), [(NATIVE, "DW", "B"), (SPEC, "DWB", "")], ids=["native", "spec"])
@UNHURRIED
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


# Speed


@pytest.mark.parametrize("vocab", [NATIVE, SPEC], ids=["native", "spec"])
def test_the_work_does_not_grow_with_the_sequence(vocab):
    whole = [START, 50, *([BOX] if vocab is NATIVE else []), 100, 101, 102, 103, CLOSE]
    counts = []
    for num_objects in (1, 300):
        ids = torch.tensor(whole * num_objects)
        with CountOperations() as operations:
            assert len(parse_targets(ids, vocab).object_spans) == num_objects
        counts.append(operations.count)
    assert counts[0] == counts[1]
