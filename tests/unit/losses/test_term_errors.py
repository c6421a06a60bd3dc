"""What cannot be a loss term: one clear sentence each."""

import pytest

from coordexp.errors import ConfigError
from coordexp.losses.terms import loss_terms
from tests.support.terms import drop

TERM = """
import torch
from coordexp.losses.term import {base}

class Mine({base}):
    name = "{name}"
    unit = "{unit}"
    formula = "none"
    {more}

    def {method}(self, inputs):
        x = inputs.head.log_z_T
        return {result}
"""


def source(name="mine", *, base="Term", unit="coord_tokens", more="", result="x.sum()"):
    """A file of one term, right where nothing else is said."""
    method = "per_token" if base == "TokenTerm" else "total"
    return TERM.format(name=name, base=base, unit=unit, more=more, method=method, result=result)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("import no_such_package\n", "ModuleNotFoundError: No module named 'no_such_package'"),
        ("def f(:\n", r"SyntaxError: .*broken.py, line 1"),
        (source("broken", more="beta = 0.1"), "PydanticUserError: .*beta"),
    ],
)
def test_a_file_that_cannot_be_imported(terms_dir, text, reason):
    drop(terms_dir, "broken", text)
    for _ in range(2):
        with pytest.raises(ConfigError, match=rf"coordexp.losses.terms.broken cannot be imported: {reason}"):
            loss_terms()
    (terms_dir / "broken.py").unlink()
    assert "gate" in loss_terms()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (source(unit="box"), "the unit 'box', expected one of tokens, text_tokens, coord_tokens, boxes"),
        (source(base="TokenTerm", unit="boxes", result="x"), "the unit 'boxes', expected one of tokens$"),
        (source("other"), "the name 'other', expected that of its file, 'mine'"),
        (source().replace("unit =", "size ="), "no class attribute unit|cannot be imported"),
        (source().replace("def total", "def sum"), "does not define total"),
        (source(more="beta: float"), "the knob beta without a default"),
        (source(more="beta: float = float('nan')"), "a wrong default for the knob beta, nan"),
        (source(more="weight: float = 1.0"), "a knob called weight"),
        (source(more="metric = 'mine'"), "logged as 'mine', which is no metric"),
        ("x = 1\n", "expected one subclass of Term, found 0"),
    ],
)
def test_a_wrong_file(terms_dir, text, message):
    drop(terms_dir, "mine", text)
    with pytest.raises(ConfigError, match=rf"coordexp\.losses\.terms\.mine.*({message})"):
        loss_terms()


@pytest.mark.parametrize(
    ("result", "message"),
    [
        ("(x.sum(), 9)", "tuple "),
        ("x", r"a torch.float64 tensor of shape \(18,\)"),
        ("(x > 0).sum()", r"a torch.int64 tensor of shape \(\)"),
    ],
)
def test_a_wrong_result_is_one_sentence_at_the_first_batch(terms_dir, make_case, result, message):
    drop(terms_dir, "mine", source(result=result))
    term = loss_terms()["mine"]()
    with pytest.raises(
        ConfigError, match=rf"^loss term 'mine' \(coordexp.losses.terms.mine\) returned {message}.*, expected a float"
    ):
        term(make_case().inputs)


@pytest.mark.parametrize(
    ("result", "message"),
    [
        ("x.sum()", r"a torch.float64 tensor of shape \(\)"),  # would be added to every token
        ("x[inputs.is_coord_T]", r"a torch.float64 tensor of shape \(13,\)"),
    ],
)
def test_a_wrong_result_token_by_token(terms_dir, make_case, result, message):
    drop(terms_dir, "mine", source(base="TokenTerm", unit="tokens", result=result))
    inputs, term = make_case().inputs, loss_terms()["mine"]()
    for compute in (term, term.values):
        with pytest.raises(ConfigError, match=rf"^loss term 'mine' \(\S+\) returned {message}.*one value for each"):
            compute(inputs)


def test_two_files_with_one_name(terms_dir):
    """It would otherwise replace text CE in every group silently."""
    drop(terms_dir, "text_ce", source("text_ce"))
    for _ in range(2):
        with pytest.raises(ConfigError, match=r"^two files are called text_ce: \S+/text_ce.py and \S+/text_ce.py;"):
            loss_terms()


def test_a_file_with_an_underscore_is_no_term(terms_dir):
    drop(terms_dir, "_shared", "SIZE = 3\n")
    text = source(more="size: int = _shared.SIZE")
    drop(terms_dir, "mine", text.replace("import torch", "from coordexp.losses.terms import _shared"))
    assert [name for name in loss_terms() if name in ("_shared", "mine")] == ["mine"]
    assert loss_terms()["mine"]().size == 3
