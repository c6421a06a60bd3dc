"""Hub ids without a network: what the local cache holds loads by name, what it lacks is one sentence, at once."""

import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from huggingface_hub import constants
from PIL import Image

from coordexp.errors import CheckpointError
from coordexp.model.loading import load

HUB_ID = "someone/qwen3-vl-tiny"
SHA, OLD_SHA = "a" * 40, "b" * 40


@pytest.fixture
def hub_home(make_base, tmp_path):
    """A cache as the hub's client writes it: two commits; ``main`` is the first, ``v0`` the second."""
    folder = tmp_path / "home" / "hub" / "models--someone--qwen3-vl-tiny"
    for sha, base in ((SHA, make_base()), (OLD_SHA, make_base(structure=None))):
        (folder / "blobs").mkdir(parents=True, exist_ok=True)
        snapshot = folder / "snapshots" / sha
        snapshot.mkdir(parents=True)
        for file in base.iterdir():
            blob = folder / "blobs" / f"{sha[:8]}-{file.name}"
            shutil.copyfile(file, blob)
            (snapshot / file.name).symlink_to(Path("../../blobs") / blob.name)
    (folder / "refs").mkdir()
    (folder / "refs" / "main").write_text(SHA)
    (folder / "refs" / "v0").write_text(OLD_SHA)
    return tmp_path / "home"


@pytest.fixture
def offline(hub_home, monkeypatch):
    """The client reads the environment when it is imported; these are what it made of it."""
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(hub_home / "hub"))
    monkeypatch.setattr(socket.socket, "connect", lambda *_: pytest.fail("the network was asked"))
    return hub_home / "hub" / "models--someone--qwen3-vl-tiny" / "snapshots"


def test_a_cached_id_loads_by_name_and_by_revision(offline):
    loaded = load(HUB_ID)
    assert loaded.vocab is not None
    assert loaded.model.name_or_path == HUB_ID  # not a place in this machine's cache
    assert load(HUB_ID, revision="main").vocab == loaded.vocab
    for revision in ("v0", OLD_SHA):
        assert load(HUB_ID, revision=revision).vocab is None  # the other commit: not expanded


@pytest.mark.usefixtures("offline")
@pytest.mark.parametrize(("hub_id", "revision"), [("someone/other", None), (HUB_ID, "v9"), (HUB_ID, "c" * 40)])
def test_what_is_not_cached_is_one_sentence(hub_id, revision):
    with pytest.raises(CheckpointError, match="cache.*HF_HUB_OFFLINE") as raised:
        load(hub_id, revision=revision)
    message = str(raised.value)
    assert message.startswith(hub_id)
    assert revision is None or revision in message
    assert "\n" not in message


@pytest.mark.ci
@pytest.mark.parametrize(
    ("verb", "debug"),
    [
        (["expand-vocab", "--output", "out"], False),
        pytest.param(["predict", "a.png"], False, marks=pytest.mark.slow),
        pytest.param(["predict", "a.png"], True, marks=pytest.mark.slow),
    ],
)
def test_a_hub_out_of_reach_is_two_lines_and_its_client_is_heard_with_debug(verb, debug, tmp_path):
    Image.new("RGB", (8, 8)).save(tmp_path / "a.png")
    unset = ("HF_HUB_OFFLINE", "HF_HUB_CACHE", "HF_HUB_VERBOSITY")
    environment = {name: value for name, value in os.environ.items() if name not in unset}
    environment |= {"HF_HOME": str(tmp_path / "home"), "HF_ENDPOINT": "http://127.0.0.1:9"}
    program = "import sys, time; time.sleep = print; from coordexp.cli.main import main; sys.exit(main())"
    command = [sys.executable, "-c", program, *verb, "--model", "someone/model", *["--debug"] * debug]
    done = subprocess.run(
        command, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 2, done.stderr
    asks, *others, error = done.stderr.splitlines()
    assert "hub" in asks
    assert "someone/model" in asks
    assert error.startswith("error: someone/model")
    assert any("[Retry 1/5]" in line for line in others) == debug
    assert debug or not others
