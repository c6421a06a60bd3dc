"""The tracking server in containers: what docker would refuse or publish, as far as it can be seen without docker."""

import yaml

from tests.support.commands import ROOT

SERVICES = (COMPOSE := yaml.safe_load((ROOT / "ray_jobs" / "compose.yaml").read_text(encoding="utf-8")))["services"]


def test_mlflow_finds_its_database_and_keeps_artifacts() -> None:
    assert SERVICES["mlflow"]["command"].endswith(" --serve-artifacts --artifacts-destination /artifacts")
    assert SERVICES["mlflow"]["volumes"] == ["artifacts:/artifacts"]
    uri, database = SERVICES["mlflow"]["environment"]["MLFLOW_BACKEND_STORE_URI"], SERVICES["postgres"]["environment"]
    user, name = database["POSTGRES_USER"], database["POSTGRES_DB"]
    assert uri == f"postgresql+psycopg2://{user}:${{POSTGRES_PASSWORD}}@postgres:5432/{name}"
    assert database["POSTGRES_PASSWORD"].startswith("${POSTGRES_PASSWORD:?")


def test_only_mlflow_is_published_and_on_loopback() -> None:
    assert {name: service.get("ports") for name, service in SERVICES.items()} == {
        "postgres": None,
        "mlflow": ["127.0.0.1:5000:5000"],
    }
    volumes = {volume.partition(":")[0] for service in SERVICES.values() for volume in service["volumes"]}
    assert volumes == set(COMPOSE["volumes"])
