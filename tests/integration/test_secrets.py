"""Secrets of an address, of the environment and of a server are in nothing that is printed, logged, stored or sent."""

import sqlite3
from pathlib import Path

import pytest

from coordexp.cli.main import main
from coordexp.runs.folder import ExperimentFolder
from tests.support.ablation import StandIn, make_config, run

pytestmark = pytest.mark.timeout(240)
SECRET = "hunter2correcthorse"
IN_ADDRESSES = [
    form.format(scheme=scheme, secret=SECRET)
    for scheme in ("http", "https", "sqlite", "postgresql", "mysql+pymysql")
    for form in (
        "{scheme}://me:{secret}@host:5000/db",
        "{scheme}://{secret}@host/db",
        "{scheme}://host/db?password={secret}",
        "{scheme}://host/db?sslkey=x&token={secret}#y",
        "{scheme}://host/db#token={secret}",
        "{scheme}://host/db;auth={secret}",
        "{scheme}://host\n{secret}",
    )
    # A file's name may hold any of these characters; it is no place for a secret.
    if not (scheme == "sqlite" and any(mark in form for mark in ("#token", ";auth", "host\n")))
] + [
    # Not one of these has a place that is made for a secret.
    f"me:{SECRET}@host",
    f"//me:{SECRET}@host",
    f"http://host/me:{SECRET}@x/",
    f"http://host\\me:{SECRET}@x/",
    f"file:///{SECRET}",
    SECRET,
]
IN_VARIABLES = (
    "MLFLOW_TRACKING_PASSWORD", "MLFLOW_TRACKING_TOKEN", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "HF_TOKEN",
    "HUGGING_FACE_HUB_TOKEN", "WANDB_API_KEY", "AZURE_STORAGE_ACCESS_KEY", "GITHUB_TOKEN", "PGPASSWORD",
    "MLFLOW_BACKEND_STORE_URI", "HTTP_PROXY", "RAY_JOB_HEADERS", "CUBLAS_SECRET", "OMP_SECRET",
)  # fmt: skip


@pytest.mark.parametrize("uri", IN_ADDRESSES)
def test_no_verb_repeats_what_an_address_holds(uri: str, tmp_path: Path, capsys, monkeypatch) -> None:
    runs = f"experiment.runs_dir={tmp_path / 'runs'}"
    commands = [
        ["ablation", "--dry-run", "--debug", runs, f"tracking.uri={uri}"],
        ["train", "--dry-run", runs, f"tracking.uri={uri}"],
        ["report", "tiny", "--debug", "--tracking-uri", uri, "--runs-dir", str(tmp_path)],
        ["report", "--watch", "tiny", "--tracking-uri", uri, "--runs-dir", str(tmp_path)],
    ]
    for command in commands:
        assert main(command) == 2
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    assert main(["ablation", "--dry-run", "--debug", runs]) == 2
    said = capsys.readouterr()
    assert SECRET not in said.out + said.err
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    "arguments",
    [
        *(
            ["train", "--dry-run", "--debug", override.format(f"http://me:{SECRET}@host")]
            for override in (
                "tracking={{uri: '{}'}}", "tracking={{uri: '{}', x: 1}}", "tracking={{uri: ['{}']}}",
                "tracking.uri=[{}]", "tracking.uri={{a: {}}}", "tracking.uri.x={}", "tracking.uri={}: x",
                " tracking.uri ={}", "tracking.url={}", "tracking.URI={}", "TRACKING.uri={}", "racking.uri={}",
                "tracking={}", "tracking.uri: {}", "ablation.groups.A.tracking.uri={}",
                "model.path={}", "data.train_annotations={}", "data.train_images={}", "experiment.runs_dir={}",
                "experiment.name={}", "model.path=" + "x" * 40 + "{}", "training.max_steps={}",
                "training.max_steps=[{}]",
            )
        ),
        ["train", "--dry-run", "--debug", f"tracking.uri=*{SECRET}"],
        ["train", "--dry-run", "--debug", f"tracking.uri=!{SECRET} x"],
        ["train", "--dry-run", "--debug", f"tracking={SECRET}"],
        ["train", "--dry-run", f"model.path=https://host/x?token={SECRET}"],
        ["train", "--dry-run", f"data.train_images=s3://key:{SECRET}@bucket/x"],
        ["train", "--dry-run", "--config", f"http://me:{SECRET}@host/x.yaml"],
        ["train", "--dry-run", f"http://me:{SECRET}@host/x.yaml"],
        ["train", "--traking-uri", f"http://me:{SECRET}@host"],
        ["report", "--runs-dir", f"http://host/x?token={SECRET}"],
        ["report", "--runs-dir", f"//me:{SECRET}@host"],
        ["evaluate", f"http://me:{SECRET}@host"],
        [f"http://me:{SECRET}@host"],
        ["report", "--runs-dir", f"http://me:{SECRET}@host"],
        ["report", "x", "--check", f"http://me:{SECRET}@host"],
        ["predict", "--model", f"https://me:{SECRET}@host/x", "picture.png"],
        ["predict", "--model", "embedded", f"https://me:{SECRET}@host/x.png"],
        ["compare", "--annotations", f"https://me:{SECRET}@host/x.json", "A=a.json", "B=b.json"],
        ["compare", "--annotations", "a.json", f"https://me:{SECRET}@host/x.json"],
    ],
    ids=" ".join,
)  # fmt: skip
def test_no_sentence_repeats_the_secret_of_an_address_in_any_place(
    arguments: list[str], tmp_path: Path, capsys, monkeypatch
) -> None:
    config = ["--config", str(Path("experiments/tiny.yaml").absolute())] if "--dry-run" in arguments else []
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.chdir(tmp_path)
    try:
        code = main([*arguments[:1], *([] if "--config" in arguments else config), *arguments[1:]])
    except SystemExit as end:
        code = end.code
    said = capsys.readouterr()
    assert code == 2
    assert said.err
    assert SECRET not in said.out + said.err


@pytest.mark.slow
def test_a_whole_ablation_keeps_nothing_of_the_environment(base: Path, runs_dir: Path, monkeypatch) -> None:
    for name in IN_VARIABLES:
        uri = f"postgresql://me:{SECRET}@host/db" if name == "MLFLOW_BACKEND_STORE_URI" else SECRET
        monkeypatch.setenv(name, f"http://me:{SECRET}@host" if name == "HTTP_PROXY" else uri)
    config = make_config(base, runs_dir, "secrets")
    code, text = run(config, StandIn(broken={"C": ValueError("it broke")}))
    assert code == 1
    assert SECRET not in text
    folder = ExperimentFolder.of(config)
    kept = [path for path in folder.path.parent.rglob("*") if path.is_file()]
    assert folder.run("C", 0).error_log in kept
    holding = [str(path) for path in kept if SECRET.encode() in path.read_bytes()]
    assert holding == []
    with sqlite3.connect(folder.path.parent / "mlflow.db") as database:
        assert database.execute("SELECT count(*) FROM runs").fetchone()[0] >= 3  # it was looked into, above
