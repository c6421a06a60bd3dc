"""The page as text; how it looks and behaves is tests/integration/test_report_browser.py."""

import dataclasses
import itertools
import re
from html.parser import HTMLParser

import pytest

from coordexp.report.page.page import render_page
from coordexp.report.study.about import Fairness, FairnessRow
from coordexp.report.study.examples import BinProbabilities, EdgeDistributions
from coordexp.report.study.study import Study
from tests.support.report import SPITEFUL

_VOID = {"meta", "link", "img", "input", "br", "hr"}


class Outline(HTMLParser):
    """Headings, ids, references, and whether every tag is closed."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.headings: list[int] = []
        self.ids: list[str] = []
        self.references: list[str] = []
        self.open: list[str] = []
        self.scripts = 0
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        if re.fullmatch(r"h[1-6]", tag):
            self.headings.append(int(tag[1]))
        if values.get("id"):
            self.ids.append(str(values["id"]))
        self.references += [str(values[name]) for name in ("href", "src") if values.get(name)]
        self.scripts += tag == "script"
        if tag not in _VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in _VOID:
            self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


@pytest.fixture(scope="module")
def text(paired: Study) -> str:
    return render_page(with_everything(paired))


def with_everything(study: Study) -> Study:
    """Add what the older runs of the fixture lack."""
    curves = {
        group: BinProbabilities((99, 100, 101), (0.2, 0.5 + 0.1 * i, 0.3 - 0.1 * i), 100.1)
        for i, group in enumerate(study.data.groups)
    }
    return dataclasses.replace(study, coord_curves=(EdgeDistributions(3, SPITEFUL, "x1", 101, curves),))


def test_every_part_is_there_and_every_tag_closed(text: str) -> None:
    outline = Outline(text)
    assert outline.open == []
    sections = [name for name in re.findall(r'<h2 id="([\w-]+)"', text) if name != "missing-title"]
    assert sections == [
        "about", "results", "why", "curves", "boxes", "gallery", "distributions", "free", "fairness", "runs", "words",
        "again",
    ]  # fmt: skip
    assert len(outline.ids) == len(set(outline.ids))
    assert outline.headings[0] == 1
    assert outline.headings.count(1) == 1
    assert all(b <= a + 1 for a, b in itertools.pairwise(outline.headings)), "headings go down one level at a time"
    assert text.count('class="picture"') == 6
    assert text.count("<rect") > 30


def test_it_refers_to_nothing_outside_itself(text: str) -> None:
    outline = Outline(text)
    assert all(reference.startswith(("#", "data:")) for reference in outline.references)
    ids = {f"#{name}" for name in outline.ids}
    assert {reference for reference in outline.references if reference.startswith("#")} <= ids
    assert not re.search(r"url\((?!#)|@import|fetch\(|XMLHttpRequest", text)
    assert "default-src 'none'" in text


@pytest.mark.usefixtures("undrawn")
def test_names_from_the_data_are_text_and_never_markup(text: str, bare: Study) -> None:
    assert SPITEFUL not in text
    assert "&lt;script&gt;" in text
    assert "B<i>" not in text
    assert Outline(text).scripts == 1
    named = dataclasses.replace(bare, data=dataclasses.replace(bare.data, name=SPITEFUL), verdict=SPITEFUL)
    assert SPITEFUL not in render_page(named)


@pytest.mark.usefixtures("undrawn")
def test_an_experiment_without_files_still_makes_a_page(bare: Study) -> None:
    page = render_page(bare)
    assert "There is nothing to compare yet." in page
    assert "nothing is here" in page
    assert 'id="gallery"' not in page
    assert "<details open>" in page
    assert Outline(page).open == []


@pytest.mark.usefixtures("undrawn")
def test_undeclared_differences_are_told_at_the_top(paired: Study) -> None:
    row = FairnessRow("data.prompt", declared=False, values=(("A-s0", "one"), ("C-s0", "two")))
    unfair = Fairness(False, ("objective",), (row,), checked=("A-s0", "C-s0"))
    page = render_page(dataclasses.replace(paired, fairness=unfair))
    assert page.index("These runs differ in more than the declared factor") < page.index('id="results"')
    assert re.search(r'<tr class="undeclared"><th scope="row" class="text">data.prompt', page)
    assert "These runs differ" not in render_page(paired)
