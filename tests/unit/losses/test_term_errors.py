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
    ("text", "facts"),
    [
        ("import no_such_package\n", "ModuleNotFoundError.*no_such_package"),
        ("def f(:\n", r"SyntaxError.*broken\.py.*1"),
        (source("broken", more="beta = 0.1"), "PydanticUserError.*beta"),
    ],
)
def test_a_file_that_cannot_be_imported(terms_dir, text, facts):
    drop(terms_dir, "broken", text)
    for _ in range(2):
        with pytest.raises(ConfigError, match=rf"coordexp\.losses\.terms\.broken.*{facts}"):
            loss_terms()
    (terms_dir / "broken.py").unlink()
    assert "gate" in loss_terms()


@pytest.mark.parametrize(
    ("text", "facts"),
    [
        (source(unit="box"), "unit.*'box'.*tokens, text_tokens, coord_tokens, boxes"),
        (source(base="TokenTerm", unit="boxes", result="x"), "unit.*'boxes'.* tokens$"),
        (source("other"), "name.*'other'.*'mine'"),
        (source().replace('unit = "coord_tokens"', ""), "unit"),
        (source().replace("def total", "def sum"), "total"),
        (source(more="beta: float"), "beta.*default"),
        (source(more="beta: float = float('nan')"), "default.*beta.*nan"),
        (source(more="weight: float = 1.0"), "knob.*weight"),
        (source(more="metric = 'mine'"), "'mine'.*metric"),
        ("x = 1\n", "Term.* 0$"),
    ],
)
def test_a_wrong_file(terms_dir, text, facts):
    drop(terms_dir, "mine", text)
    with pytest.raises(ConfigError, match=rf"coordexp\.losses\.terms\.mine.*{facts}"):
        loss_terms()


@pytest.mark.parametrize(
    ("result", "facts"),
    [
        ("(x.sum(), 9)", "tuple"),
        ("x", r"float64.*\(18,\)"),
        ("(x > 0).sum()", r"int64.*\(\)"),
    ],
)
def test_a_wrong_result_is_one_sentence_at_the_first_batch(terms_dir, make_case, result, facts):
    drop(terms_dir, "mine", source(result=result))
    term = loss_terms()["mine"]()
    with pytest.raises(ConfigError, match=rf"'mine'.*coordexp\.losses\.terms\.mine.*{facts}"):
        term(make_case().inputs)


@pytest.mark.parametrize(
    ("result", "facts"),
    [
        ("x.sum()", r"float64.*\(\)"),  # would be added to every token
        ("x[inputs.is_coord_T]", r"float64.*\(13,\)"),
    ],
)
def test_a_wrong_result_token_by_token(terms_dir, make_case, result, facts):
    drop(terms_dir, "mine", source(base="TokenTerm", unit="tokens", result=result))
    inputs, term = make_case().inputs, loss_terms()["mine"]()
    for compute in (term, term.values):
        with pytest.raises(ConfigError, match=rf"'mine'.*{facts}.*\(18,\)"):
            compute(inputs)


def test_two_files_with_one_name(terms_dir):
    """It would otherwise replace text CE in every group silently."""
    drop(terms_dir, "text_ce", source("text_ce"))
    for _ in range(2):
        with pytest.raises(ConfigError, match=r"text_ce.*\S+/text_ce\.py.*\S+/text_ce\.py"):
            loss_terms()


def test_a_file_with_an_underscore_is_no_term(terms_dir):
    drop(terms_dir, "_shared", "SIZE = 3\n")
    text = source(more="size: int = _shared.SIZE")
    drop(terms_dir, "mine", text.replace("import torch", "from coordexp.losses.terms import _shared"))
    assert [name for name in loss_terms() if name in ("_shared", "mine")] == ["mine"]
    assert loss_terms()["mine"]().size == 3
