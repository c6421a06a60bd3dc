"""The list of private names is whole, and each is there."""

from pathlib import Path
from types import SimpleNamespace

import pytest
import ray
from transformers import Trainer

from tests.upgrade import check
from tests.upgrade.names import NAMES, OF_OTHERS, PrivateName, moved
from tests.upgrade.used import find_uses, unlisted

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def uses():
    return find_uses(ROOT)


def _found_in(tmp_path, text):
    folder = tmp_path / "coordexp"
    folder.mkdir()
    (folder / "planted.py").write_text(text, encoding="utf-8")
    return {use.path for use in unlisted(find_uses(tmp_path), NAMES)}


@pytest.mark.parametrize("name", NAMES, ids=[name.path for name in NAMES])
def test_a_private_name_is_where_we_expect_it(name):
    assert moved(name) is None


def test_what_moved_is_named_with_its_use():
    assert moved(PrivateName("ray._private.state.gone.away", "x")) == (
        f"ray {ray.__version__}: ray._private.state.gone.away moved; used for x"
    )
    lost = moved(PrivateName("ray._private.state.actors", "y", ("actor_name",)))
    assert lost is not None
    assert "takes no actor_name any more; used for y" in lost
    assert moved(PrivateName("ray._private.worker.global_worker", "z", (), ("no_such",))) is not None
    assert moved(PrivateName("transformers.Trainer._no_such_batch_size", "w")) is not None


def test_every_use_is_listed(uses):
    assert unlisted(uses, NAMES) == []


def test_everything_listed_is_used(uses):
    assert [name.path for name in NAMES if not any(use.is_by(name) for use in uses)] == []
    text = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "coordexp").rglob("*.py"))
    assert [name for name in OF_OTHERS if name not in text] == []


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("import ray\n\nray._private.worker.other()", "ray._private.worker.other"),
        ("from ray._private import utils", "ray._private.utils"),
        ("import ray._private.state as s\n\ns.nodes()", "ray._private.state.nodes"),
        ("import mlflow.store._unity", "mlflow.store._unity"),
        ("def f():\n    from peft.utils.other import ModulesToSaveWrapper", "peft.utils.other.ModulesToSaveWrapper"),
        ("def f(model):\n    return model._no_split_modules", "._no_split_modules"),
        ("class A:\n    def f(self):\n        return self.model._tied_weights", "._tied_weights"),
        ("def f(model):\n    return getattr(model, '_hf_hook', None)", "._hf_hook"),
        ("def f(model):\n    return vars(model)['_old_forward']", "._old_forward"),
    ],
)
def test_a_use_that_is_not_listed_is_found(tmp_path, text, path):
    assert path in _found_in(tmp_path, text)


def test_an_overridden_name_and_one_asked_of_self_are_found(tmp_path, monkeypatch):
    planted = SimpleNamespace(Ours=type("Ours", (Trainer,), {}))
    monkeypatch.setattr("tests.upgrade.used.importlib.import_module", lambda _: planted)
    source = (
        "class Ours(Trainer):\n"
        "    def _remove_unused_columns(self): return self._signature_columns\n"
        "    def _own(self): return self._something_of_ours\n"
    )
    assert _found_in(tmp_path, source) == {"._remove_unused_columns", "._signature_columns"}


def test_public_names_and_our_own_are_no_use(tmp_path):
    text = "import ray\nfrom peft import LoraConfig\n\nclass A:\n    def f(self): return self._x, ray.get, LoraConfig"
    text += "\n    def g(self):\n        other = copy(self)\n        return other._x"
    assert _found_in(tmp_path, text) == set()


def test_versions_that_differ_are_named():
    pinned = "Foo.bar==1.0\ntorch==2.13.0\nabsent==3\nsame==4\n"
    installed = {"foo-bar": "1.1", "torch": "2.13.0+cpu", "same": "4", "new": "5"}
    assert check.differences(pinned, installed) == ["foo-bar 1.0 -> 1.1", "new 5 (not pinned)"]


@pytest.mark.parametrize(("names", "status"), [(NAMES, 0), ((*NAMES, PrivateName("peft._gone", "nothing")), 1)])
def test_the_list_ends_with_one_where_a_name_is_gone(monkeypatch, capsys, uses, names, status):
    monkeypatch.setattr("tests.upgrade.used.find_uses", lambda _: uses)
    monkeypatch.setattr("tests.upgrade.names.NAMES", names)
    monkeypatch.setattr("sys.argv", ["check", "--list-only"])
    assert check.main() == status
    printed = capsys.readouterr().out
    assert ("GONE" in printed) == bool(status)
    assert f"{len(names)} private names; {status} gone or not listed" in printed
