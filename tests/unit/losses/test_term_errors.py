"""What cannot be a loss term: one clear sentence each."""

import importlib
import os
import re
import sys

import pytest
import torch

from coordexp.errors import ConfigError
from coordexp.losses.term import find_term
from tests.unit.losses.term_support import EXAMPLE, drop

HEAD = "from coordexp.losses.term import term\n\n"


def test_two_files_with_one_name(losses_dir):
    body = HEAD + "@term('twin', unit='boxes')\ndef {}(inputs):\n    return inputs.log_z_T.sum() * 0, 0\n"
    drop(losses_dir, "first", body.format("one"))
    drop(losses_dir, "second", body.format("two"))
    message = (
        "loss term 'twin' is registered twice, by coordexp.losses.first.one and coordexp.losses.second.two; "
        "give one of them another name"
    )
    for name in ("twin", "gate", "twin"):  # whatever is asked for, and again
        with pytest.raises(ConfigError, match=f"^{re.escape(message)}$"):
            find_term(name)


def test_a_file_that_takes_a_built_in_name(losses_dir):
    """It would otherwise replace text CE in every group without a word."""
    drop(losses_dir, "mine", HEAD + "@term('text_ce', unit='tokens')\ndef mine(inputs):\n    return 0, 0\n")
    with pytest.raises(ConfigError, match=r"'text_ce' is registered twice, by \S+text_cross_entropy and \S+mine.mine"):
        find_term("text_ce")


def test_a_file_written_within_the_clock_of_the_file_system(losses_dir):
    """The directory's time did not change since it was last read, so that Python would trust its cached list."""
    drop(losses_dir, "early", "")
    find_term("gate")
    times = losses_dir.stat()
    drop(losses_dir, "my_term", EXAMPLE)
    os.utime(losses_dir, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert find_term("bin_mse").unit == "coord_tokens"


def test_the_same_file_again_is_no_clash(losses_dir):
    drop(losses_dir, "my_term", EXAMPLE)
    before = find_term("bin_mse")
    importlib.reload(sys.modules["coordexp.losses.my_term"])
    assert find_term("bin_mse") is not before


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("import no_such_package\n", "ModuleNotFoundError: No module named 'no_such_package'"),
        ("def f(:\n", r"SyntaxError: .*broken.py, line 1"),
        ("1 / 0\n", "ZeroDivisionError: division by zero"),
    ],
)
def test_a_file_that_cannot_be_imported(losses_dir, text, reason):
    drop(losses_dir, "broken", text)
    for _ in range(2):
        with pytest.raises(
            ConfigError, match=rf"^the loss file coordexp.losses.broken cannot be imported: {reason}"
        ) as found:
            find_term("gate")
        assert str(found.value).endswith("; mend it or take it away")
        assert found.value.__cause__ is not None
    (losses_dir / "broken.py").unlink()
    assert find_term("gate").name == "gate"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            "'x', unit='box'",
            "loss term 'x' has the unit 'box', expected one of tokens, text_tokens, coord_tokens, boxes",
        ),
        ("'a/b', unit='boxes'", "loss term 'a/b': expected a name of letters, digits and underscores"),
        ("'', unit='boxes'", "loss term '': expected a name of letters, digits and underscores"),
    ],
)
def test_a_wrong_registration(losses_dir, arguments, message):
    drop(losses_dir, "wrong", HEAD + f"@term({arguments})\ndef wrong(inputs):\n    return 0, 0\n")
    with pytest.raises(ConfigError, match=f"^coordexp.losses.wrong: {message}$"):
        find_term("gate")


@pytest.mark.parametrize(
    ("result", "message"),
    [
        (
            "x.sum()",
            r"a torch.float64 tensor of shape \(\), expected \(sum, count\): a scalar float tensor and the int",
        ),
        ("None", r"NoneType None, expected \(sum, count\)"),
        ("(x.sum(), 9, 1)", r"a tuple of 3, expected \(sum, count\)"),
        ("(x, 9)", r"a torch.float64 tensor of shape \(18,\) as its sum, expected a scalar float tensor"),
        ("(1.5, 9)", "float 1.5 as its sum, expected a scalar float tensor"),
        ("((x > 0).sum(), 9)", r"a torch.int64 tensor of shape \(\) as its sum"),
        ("(x.sum(), 9.0)", "float 9.0 as its count, expected an int: the number of coord tokens, from a shape"),
        ("(x.sum(), True)", "bool True as its count"),
        ("(x.sum(), torch.tensor(9))", r"a torch.int64 tensor of shape \(\) as its count"),
        ("(x.sum(), 2)", "the count 2, but the batch has 13 coord tokens, the unit it is registered with"),
    ],
)
def test_a_wrong_result_is_one_sentence_at_the_first_batch(losses_dir, make_case, result, message):
    body = "import torch\n@term('wrong', unit='coord_tokens')\ndef wrong(inputs):\n    x = inputs.log_z_T\n    return "
    drop(losses_dir, "wrong", HEAD + body + result + "\n")
    with pytest.raises(ConfigError, match=rf"^loss term 'wrong' \(coordexp.losses.wrong\) returned {message}"):
        find_term("wrong").compute(make_case().inputs)


TOKEN_HEAD = "import torch\nfrom coordexp.losses.term import token_term\n\n"


def test_a_term_given_token_by_token(losses_dir, make_case):
    drop(
        losses_dir,
        "focal",
        TOKEN_HEAD + "@token_term('focal')\ndef focal(x):\n    return (1 - (-x.ce_T).exp()) * x.ce_T\n",
    )
    case = make_case()
    found = find_term("focal")
    value, count = found.compute(case.inputs)
    ce_T = torch.nn.functional.cross_entropy(case.logits, case.targets, reduction="none")
    torch.testing.assert_close(value, ((1 - (-ce_T).exp()) * ce_T).sum())
    assert (found.unit, count) == ("tokens", 18)
    assert found.per_token is not None
    assert found.per_token(case.inputs).shape == (18,)


@pytest.mark.parametrize(
    ("result", "message"),
    [
        ("x.ce_T.sum()", r"a torch.float64 tensor of shape \(\)"),  # would be added to every token
        ("x.ce_T[x.is_coord_T]", r"a torch.float64 tensor of shape \(13,\)"),
        ("x.is_coord_T", r"a torch.bool tensor of shape \(18,\)"),
        ("(x.ce_T, 18)", "a tuple of 2"),
    ],
)
def test_a_wrong_result_token_by_token(losses_dir, make_case, result, message):
    drop(losses_dir, "wrong", TOKEN_HEAD + f"@token_term('wrong')\ndef wrong(x):\n    return {result}\n")
    inputs, found = make_case().inputs, find_term("wrong")
    for compute in (found.compute, found.per_token):
        with pytest.raises(
            ConfigError, match=rf"^loss term 'wrong' \(coordexp.losses.wrong\) returned {message}, expected"
        ):
            compute(inputs)
