"""Which sources a run's fingerprint holds, and what of them counts."""

from collections.abc import Callable
from pathlib import Path

import pytest

from coordexp.config import ExperimentConfig, fingerprint
from coordexp.config.identity.code import code_of_run

FILES = {
    "__init__.py": '"""The package."""\n',
    "train/__init__.py": "",
    "train/run.py": (
        "import os\n\nfrom coordexp.config.schema import steps\nfrom coordexp.losses.criterion import total\n"
        "from coordexp.metrics import NAMES\n"
    ),
    "config/schema/__init__.py": (
        "from coordexp.config.load import read\n\nSIZE: int = key(1, 'results')\n'''How many.'''\nsteps = SIZE * 2\n"
    ),
    "config/load.py": "read = open\n",
    "losses/criterion.py": (
        '"""What a step minimises."""\n\nSCALE = 2.0\n\n\ndef total(x):\n    """Add."""\n    return x * SCALE\n'
    ),
    "losses/terms/near.py": (
        "from coordexp.losses import shapes\n\n\nclass Near:\n    beta: float = Field(1.0, description='Where.')\n"
    ),
    "losses/terms/far.py": "class Far: ...\n",
    "losses/shapes.py": "SIDES = 4\n",
    "metrics.py": "NAMES = ('loss',)\n",
    "errors.py": "class Wrong(Exception): ...\n",
    "report/page.py": "from coordexp.losses.criterion import total\n",
}


@pytest.fixture
def package(tmp_path: Path) -> Path:
    for name, text in FILES.items():
        path = tmp_path / "coordexp" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path / "coordexp"


@pytest.fixture
def hashes(package: Path) -> Callable[..., dict[str, str]]:
    """Return the hashes as another process would see them."""

    def read(*terms: str) -> dict[str, str]:
        code_of_run.cache_clear()
        return dict(code_of_run(terms, package=package))

    return read


def test_what_a_run_imports_counts_and_only_that(hashes):
    assert list(hashes()) == [
        "coordexp/config/schema/__init__.py", "coordexp/losses/criterion.py", "coordexp/train/run.py",
    ]  # fmt: skip
    own = ["coordexp/losses/shapes.py", "coordexp/losses/terms/near.py"]
    assert sorted(set(hashes("near")) - set(hashes())) == own


@pytest.mark.parametrize(
    ("file", "old", "new"),
    [
        ("losses/criterion.py", '"""Add."""', '"""Add up, over a whole step."""'),
        ("losses/criterion.py", '"""What a step minimises."""', ""),
        ("losses/criterion.py", "x * SCALE", "(\n        x * SCALE  # twice\n    )"),
        ("losses/terms/near.py", "'Where.'", "'Where it turns linear.'"),
        ("config/schema/__init__.py", "How many.", "How many images."),
        ("config/load.py", "open", "print"),
        ("metrics.py", "'loss'", "'train_loss'"),
        ("report/page.py", "total", "total as sum_of_terms"),
        ("losses/terms/far.py", "class Far", "class Further"),
        ("train/__init__.py", "", '"""The room."""'),
    ],
)
def test_what_changes_no_number_changes_no_hash(package: Path, hashes, file: str, old: str, new: str):
    before = hashes("near")
    path = package / file
    path.write_text(path.read_text().replace(old, new) if old else new)
    assert path.read_text() != FILES[file]
    assert hashes("near") == before


@pytest.mark.parametrize(
    ("file", "old", "new"),
    [
        ("losses/criterion.py", "2.0", "3.0"),
        ("losses/criterion.py", "x * SCALE", "SCALE * x"),
        ("losses/terms/near.py", "1.0", "2.0"),
        ("losses/shapes.py", "4", "5"),
        ("config/schema/__init__.py", "* 2", "* 3"),
        ("train/run.py", "import os", "import sys"),
    ],
)
def test_a_change_is_named_by_its_file(package: Path, hashes, file: str, old: str, new: str):
    before = hashes("near")
    (package / file).write_text(FILES[file].replace(old, new))
    after = hashes("near")
    assert before.keys() == after.keys()
    assert [path for path in before if before[path] != after[path]] == [f"coordexp/{file}"]


def test_a_new_term_is_nothing_to_runs_without_it(package: Path, hashes):
    before = hashes(), hashes("near")
    (package / "losses" / "terms" / "newest.py").write_text("class Newest: ...\n")
    assert (hashes(), hashes("near")) == before
    assert set(hashes("newest")) - set(before[0]) == {"coordexp/losses/terms/newest.py"}


def test_the_rooms_that_decide_numbers_are_in_and_the_others_are_not():
    rooms = {path.split("/")[1] for path in code_of_run()}
    assert rooms == {
        "config", "coord_tokens", "data", "detection", "evaluate", "files.py", "losses", "model", "runs", "train",
    }  # fmt: skip
    for name in (
        "detection/metrics/coco.py",
        "detection/metrics/f1.py",
        "losses/criterion.py",
        "losses/terms/w1.py",
        "train/trainer.py",
        "data/sampler.py",
        "config/schema/root.py",
    ):
        assert f"coordexp/{name}" in code_of_run()
    assert "coordexp/losses/terms/smooth_l1.py" not in code_of_run()


def test_a_run_has_the_sources_of_its_own_terms():
    extra = ExperimentConfig.model_validate({"objective": {"extra": {"smooth_l1": 1.0}}})
    own = set(fingerprint(extra).code) - set(fingerprint(ExperimentConfig()).code)
    assert own == {"coordexp/losses/terms/smooth_l1.py"}
