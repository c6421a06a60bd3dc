"""Codec: hand values, round trips, errors that name the bad item, and the cost of a mixed divisor."""

import inspect
import re

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from coordexp.coord_tokens.codec import (
    NUM_BINS,
    as_id_list,
    coord_mask,
    decode,
    encode,
    int_to_token,
    ints_to_tokens,
    is_coord_token,
    token_to_int,
    tokens_to_ints,
)
from coordexp.coord_tokens.template_adapter import apply_coord_template_adapter
from coordexp.coord_tokens.validator import annotate_coord_tokens


@pytest.mark.parametrize(
    ("value", "k"),
    [
        (0.0, 0),
        (0.0004, 0),
        (0.0005, 0),  # 0.5: halves go to the even bin
        (0.0006, 1),
        (0.0015, 2),  # 1.5, again to the even one
        (0.25, 250),
        (0.5, 500),
        (0.9984, 998),
        (0.9995, 999),  # rounds to 1000, clamped
        (1.0, 999),
        (1.5, 999),
        (-0.2, 0),
    ],
)
def test_encode_by_hand(value, k):
    assert encode([value]).tolist() == [k]
    assert encode(value).item() == k


def test_decode_by_hand():
    assert decode([0, 1, 500, 999]).tolist() == [0.0, 0.001, 0.5, 0.999]
    assert decode(torch.tensor([249.5])).item() == 0.2495


def test_every_bin_survives_a_round_trip():
    ks = torch.arange(NUM_BINS)
    assert torch.equal(encode(decode(ks)), ks)
    assert tokens_to_ints(ints_to_tokens(range(NUM_BINS))) == list(range(NUM_BINS))
    assert torch.equal(encode(torch.arange(1000, dtype=torch.float32) / 1000), ks)  # float32 values too
    assert [token_to_int(int_to_token(np.int64(k))) for k in (0, 7, 999)] == [0, 7, 999]


@given(st.lists(st.floats(0, 0.999), min_size=1))
def test_a_round_trip_moves_a_coordinate_by_half_a_bin_at_most(values):
    error = (decode(encode(values)) - torch.tensor(values, dtype=torch.float64)).abs().max().item()
    assert error <= 0.5 / NUM_BINS + 1e-12


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_encode_refuses_what_is_not_finite(bad):
    with pytest.raises(ValueError, match="NaN"):
        encode([0.1, bad])


@pytest.mark.parametrize("bad", [-1, 1000, 999.5, float("nan")])
def test_decode_refuses_what_is_no_bin(bad):
    with pytest.raises(ValueError, match=r"outside 0\.\.999"):
        decode([3, bad])


@pytest.mark.parametrize(
    "text",
    ["<|coord_*|>", "<|coord_1000|>", "<|coord_00|>", "<|coord_07|>", "<|coord_-1|>", "<|coord_|>", "coord_1", "",
     " <|coord_1|>", "<|coord_1|>\n", "<|coord_1|><|coord_2|>", "<|coord_\u0661|>", None, 7],
)  # fmt: skip
def test_what_is_no_coord_token(text):
    assert not is_coord_token(text)
    with pytest.raises(ValueError, match=re.escape(repr(text))):
        token_to_int(text)


def test_a_coord_token():
    assert is_coord_token("<|coord_0|>")
    assert is_coord_token("<|coord_999|>")
    assert token_to_int("<|coord_42|>") == 42


@pytest.mark.parametrize("bad", [-1, 1000, True, 1.0, "1", None])
def test_int_to_token_refuses_what_is_no_bin(bad):
    with pytest.raises(ValueError, match=re.escape(repr(bad))):
        int_to_token(bad)


def test_errors_name_the_item_and_its_place():
    with pytest.raises(ValueError, match=r"item 2\b.*<\|coord_x\|>"):
        tokens_to_ints(["<|coord_1|>", "<|coord_2|>", "<|coord_x|>"])
    with pytest.raises(ValueError, match=r"item 1\b.*1000"):
        ints_to_tokens([5, 1000])


@pytest.mark.parametrize("coord_ids", [range(10, 15), {"start": 10, "end": 14}, [14, 12, 10, 13, 11], [14, 10, 12]])
def test_coord_mask_takes_ids_in_any_form(coord_ids):
    ids = torch.tensor([[9, 10, 12], [14, 15, -100]])
    assert coord_mask(ids, coord_ids).tolist() == [[False, True, True], [True, False, False]]


@pytest.mark.parametrize("bad", [[], range(3, 3), [1, 1], [-1, 2], {"start": 1}, {"start": 1, "end": 0}])
def test_id_lists_that_make_no_sense(bad):
    with pytest.raises(ValueError, match="coord ids"):
        as_id_list(bad)


def test_the_promised_signatures():
    """Other programs call these."""
    promised = {
        is_coord_token: "(text: str) -> bool",
        token_to_int: "(token: str) -> int",
        int_to_token: "(k: int) -> str",
        annotate_coord_tokens: "(record: dict[str, object]) -> bool",
        apply_coord_template_adapter: (
            "(template: coordexp.coord_tokens.template_adapter.BoxTemplate, *, enabled: bool, skip_bbox_norm: bool)"
            " -> None"
        ),
    }
    assert {function: str(inspect.signature(function)) for function in promised} == promised
    names = {function: list(inspect.signature(function).parameters) for function in (encode, decode, coord_mask)}
    assert names == {encode: ["values"], decode: ["bins"], coord_mask: ["ids", "coord_ids"]}
    assert list(inspect.signature(tokens_to_ints).parameters) == ["tokens"]
    assert list(inspect.signature(ints_to_tokens).parameters) == ["ks"]
