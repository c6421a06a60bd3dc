"""Fixtures shared by all tests."""

import fcntl
import gc
import os
import shutil
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# A busy machine is no failure: examples have no deadline, the test has its timeout. The same code is tested with the
# same examples; HYPOTHESIS_PROFILE=explore looks for new ones.
settings.register_profile("repeat", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("explore", deadline=None, max_examples=1000, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "repeat"))

# Before torch is imported: a small model on several threads of a busy machine is slower, not faster.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

# A shell that starts the tests in the background has SIGINT ignored in them and in every program that they start;
# the tests that press Ctrl-C mean what a terminal does.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_finish() -> None:
    """Spare the collector what lives until the end: modules and tests are two million objects."""
    gc.collect()
    gc.freeze()
    # For a line of its log, transformers writes each configuration that it reads as text: two thirds of the reading.
    if (module := sys.modules.get("transformers.configuration_utils")) is not None:
        module.PreTrainedConfig.__repr__ = object.__repr__


_SHARED_DATA = Path(__file__).parents[1].parent / "shared" / "data"
_COCO_TINY = _SHARED_DATA / "coco_tiny"


@pytest.fixture(scope="session")
def coco_tiny() -> Path:
    """38 real COCO images with their annotations, beside the checkout; never committed."""
    if not _COCO_TINY.is_dir():
        pytest.skip(f"the real COCO sample is not at {_COCO_TINY}")
    return _COCO_TINY


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Data as people have it, beside the checkout: small cases, and two whole sets; never committed."""
    if not (_SHARED_DATA / "cases").is_dir():
        pytest.skip(f"the cases are not at {_SHARED_DATA}")
    return _SHARED_DATA


@pytest.fixture(scope="session")
def migrated_database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An empty MLflow database, to be copied: making one takes seconds. All processes of a session share it."""
    from coordexp.tracking.connection import connect

    made = _made_once(tmp_path_factory, "mlflow", lambda folder: connect(f"sqlite:///{folder / 'template.db'}"))
    return made / "template.db"


def _made_once(factory: pytest.TempPathFactory, name: str, make: Callable[[Path], object]) -> Path:
    """Return a folder that the first process of a session makes, and the others wait for."""
    root = factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        root = root.parent  # of this session's processes
    made, making = root / name, root / f"{name}-making"
    with (root / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not made.exists():
            make(making)
            making.rename(made)
    return made


@pytest.fixture(scope="session")
def qwen_tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files of Qwen3-VL's true tokenizer; skips where the vendor's ranks are not installed."""
    from tests.support.real_vocabulary import write_qwen_tokenizer

    return _made_once(tmp_path_factory, "qwen", write_qwen_tokenizer)


@pytest.fixture(scope="session")
def make_runs_dir(migrated_database: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[], Path]:
    """Return new runs directories, each with an empty database."""

    def make() -> Path:
        runs_dir = tmp_path_factory.mktemp("runs")
        shutil.copy(migrated_database, runs_dir / "mlflow.db")
        return runs_dir

    return make


@pytest.fixture
def undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave charts out of pages and files: for tests that look at text, since drawing takes seconds."""
    monkeypatch.setattr("coordexp.report.page.page.chart_svg", lambda chart, *, label: "<svg></svg>")
    monkeypatch.setattr("coordexp.report.write.write_plots", lambda study, output: [])


@pytest.fixture
def unreported(monkeypatch: pytest.MonkeyPatch) -> None:
    """End ablations without their report: for tests of what comes before it, since it is half of a stand-in's time."""
    monkeypatch.setattr("coordexp.report.write.report_experiment", lambda *_, **__: None)
