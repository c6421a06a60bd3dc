"""Addresses of MLflow: what could be a secret in one is refused, and never repeated."""

from pathlib import Path

import pytest

from coordexp.cli.main import main
from coordexp.config.schema.tracking import address_problem

SECRET = "hunter2"
BAD = (
    f"http://host/#token={SECRET}",
    f"http://host/#/experiments/{SECRET}",
    f"http://host:{SECRET}",
    f"http://[::1/{SECRET}",
    f"http://me:{SECRET}@host",
    f"sqlite:////tmp/x.db?password={SECRET}",
    f"postgresql://me:{SECRET}@host/db",
    f"http://host\n{SECRET}",
    f"http://host/api/token={SECRET}",
    f"http://host\\me:{SECRET}@x/",
    f"file:///{SECRET}",
    f"sqlite://{SECRET}/mlflow.db",
    SECRET,
)


@pytest.mark.parametrize("uri", BAD)
def test_a_bad_address_is_refused_in_one_line_without_what_it_holds(
    uri: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # where no experiment lies
    assert address_problem(uri) is not None
    assert main(["report", "tiny", "--tracking-uri", uri]) == 2
    said = capsys.readouterr()
    assert main(["ablation", "--dry-run", f"tracking.uri={uri}"]) == 2
    of_key = capsys.readouterr()
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    assert main(["ablation", "--dry-run"]) == 2
    of_environment = capsys.readouterr()
    for one in (said, of_key, of_environment):
        assert one.err.startswith("error: ")
        assert one.err.count("\n") == 1
        assert SECRET not in one.out + one.err


@pytest.mark.parametrize(
    "uri",
    [
        "https://host/mlflow",
        "https://dagshub.com/someone/CheXNet.mlflow",
        "http://mlflow.k8s.svc.cluster.local:5000/k8s/api/2.0/",
        "http://[::1]:5000",
        "databricks",
        "azureml://westeurope.api.azureml.ms/mlflow/v1.0/subscriptions/5f2b1c3e-1234-4abc-9def-0123456789ab",
        "arn:aws:sagemaker:eu-west-1:123456789012:mlflow-tracking-server/ours",
        "postgresql://host/mlflow?sslmode=require",
        "sqlite:////home/me/my runs/a#b;c/mlflow.db",
    ],
)
def test_a_good_address_is_taken(uri: str) -> None:
    assert address_problem(uri) is None
