"""Ablations against a real MLflow server on a real PostgreSQL, as a lab would run it."""

import time
from pathlib import Path

import pytest
from mlflow import MlflowClient

from coordexp.errors import TrackingError
from coordexp.report.records.load import load_experiment
from coordexp.runs.folder import RunFolder
from coordexp.runs.reporter import Row
from coordexp.tracking import open_tracker
from tests.support.ablation import GEOMETRY, make_config, run
from tests.support.mlflow_server import Server, mlflow_server, postgres

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]
AP = "constrained/expected/AP"


@pytest.fixture(scope="module")
def cluster():
    with postgres() as running:
        yield running


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("server")


@pytest.fixture(scope="module")
def server(cluster, folder):
    with mlflow_server(cluster.database("mlflow"), folder) as running:
        yield running


class StandIn:
    """Commits a curve, detections and a merged checkpoint whose bytes are the run's own."""

    def __init__(self, num_rows: int = 5, seconds_per_row: float = 0.0) -> None:
        self.num_rows, self.seconds_per_row = num_rows, seconds_per_row
        self.done: list[str] = []

    def __call__(self, config, *, reporter, print_line):
        name = RunFolder.of(config).name
        print_line(f"{name}  begins")
        for step in range(1, self.num_rows + 1):
            value = 1.0 / (step + 7 * config.experiment.seed + len(name))
            row = Row(
                step=step, time=1000.0 + step / 7, metrics={"train_total_loss": value, "eval_total_loss": value / 3}
            )
            reporter.commit([row], step=step, checkpoint=None)
            time.sleep(self.seconds_per_row)
        merged, final = RunFolder.of(config).merged, RunFolder.of(config).evaluation("final").path
        for path, text in ((merged / "model.safetensors", name * 999), (final / "detections.expected.json", "[]")):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        ap = {AP: 0.25 + config.experiment.seed / 64, "constrained/expected/AP50": 0.5, "final/steps": float(step)}
        reporter.commit([Row(step=step, time=2000.0, metrics=ap)], step=step, checkpoint=None)
        self.done.append(name)


def config_for(base: Path, folder: Path, server: Server, name: str, **sections):
    return make_config(base, folder / "runs", name, **{"tracking": {"uri": server.url}, **sections})


def everything(url: str, experiment: str, store: Path) -> dict[str, object]:
    """All that MLflow holds of each run: parameters, tags, every point, and every artifact's bytes."""
    client = MlflowClient(url)
    found: dict[str, object] = {}
    for item in client.search_runs([client.get_experiment_by_name(experiment).experiment_id]):
        points = [p for name in item.data.metrics for p in client.get_metric_history(item.info.run_id, name)]
        folder = store / item.info.artifact_uri.split("mlflow-artifacts:/")[1]
        found[f"{item.info.run_name}/{item.info.run_id}"] = (
            dict(item.data.params),
            dict(item.data.tags),
            item.info.status,
            sorted((p.key, p.step, p.value, p.timestamp) for p in points),
            {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()},
        )
    return found


def test_a_second_ablation_of_the_same_experiment_adds_and_overwrites_nothing(base, folder, server):
    store = folder / "store"
    assert run(config_for(base, folder, server, "lab"), StandIn())[0] == 0
    first = {key: value for key, value in everything(server.url, "lab", store).items() if not key.startswith("lab/")}
    assert {key.split("/")[0] for key in first} == {"A-s0", "C-s0"}

    more = {"groups": {"A": {}, "C": GEOMETRY, "D": GEOMETRY | {"custom": {}}}, "seeds": [0, 1]}
    function = StandIn()
    assert run(config_for(base, folder, server, "lab", ablation=more), function)[0] == 0
    assert sorted(function.done) == ["A-s1", "C-s1", "D-s0", "D-s1"]
    second = everything(server.url, "lab", store)
    assert {key: second[key] for key in first} == first

    fresh = StandIn(num_rows=3)
    assert run(config_for(base, folder, server, "lab"), fresh, fresh=True)[0] == 0
    assert fresh.done == ["A-s0", "C-s0"]
    third = everything(server.url, "lab", store)
    runs_before = {key: value for key, value in second.items() if not key.startswith("lab/")}
    assert {key: third[key] for key in runs_before} == runs_before
    assert len(third) == len(second) + 3  # two runs and their parent
    data = load_experiment(server.url, "lab")
    assert {item.name for item in data.runs} == {"A-s0", "C-s0"}
    assert f"Not shown: {len(runs_before)} run" in data.others[0]


@pytest.mark.parametrize("limit", [512, 0], ids=["small", "large"])
def test_every_merged_checkpoint_is_one_model_with_its_place_and_ap(base, folder, server, limit):
    name = f"models_{limit}"
    config = config_for(base, folder, server, name, tracking={"uri": server.url, "max_artifact_mib": limit})
    assert run(config, StandIn())[0] == 0
    records = list((folder / "runs" / name).glob("*/recorded.json"))
    assert records
    for record in records:
        record.unlink()  # as if the job had died just before it noted that all was recorded
    assert run(config, StandIn())[0] == 0

    client = MlflowClient(server.url)
    experiment = client.get_experiment_by_name(name)
    models = {model.name: model for model in client.search_logged_models([experiment.experiment_id])}
    assert len(client.search_logged_models([experiment.experiment_id])) == 2
    model = models["C-s0"]
    assert (str(model.status), model.params["group"], model.params["seed"]) == ("READY", "C", "0")
    assert model.params["AP"] == "0.2500"
    source = client.get_run(model.source_run_id)
    assert [output.model_id for output in source.outputs.model_outputs] == [model.model_id]
    assert len(client.get_metric_history(model.source_run_id, AP)) == 1
    directory = folder / "runs" / name / "C-s0" / "merged"
    assert int(model.tags["bytes"]) == sum(path.stat().st_size for path in directory.iterdir()) == len("C-s0" * 999)
    stored = [path for path in (folder / "store").rglob("model.safetensors") if model.source_run_id in path.parts]
    if limit:
        assert model.tags["uri"] == f"runs:/{model.source_run_id}/merged"
        assert len(stored) == 1
    else:
        assert model.tags["uri"].startswith("file://")
        assert model.tags["uri"].endswith(str(directory))
        assert model.tags["load"] == f"coordexp.model.load('{directory}')"
        assert stored == []


def test_a_server_with_passwords_refuses_a_wrong_one_in_one_sentence(cluster, tmp_path, monkeypatch):
    pytest.importorskip("flask_wtf", reason="the extra coordexp[server] is not installed")
    auth = tmp_path / "auth.ini"
    auth.write_text(
        f"[mlflow]\ndefault_permission = READ\ndatabase_uri = sqlite:///{tmp_path}/users.db\nadmin_username = admin\n"
        "authorization_function = mlflow.server.auth:authenticate_request_basic_auth\n"
    )
    admin = {"MLFLOW_AUTH_ADMIN_PASSWORD": "a-long-s3cret-one", "MLFLOW_FLASK_SERVER_SECRET_KEY": "signs-forms"}
    admin["MLFLOW_AUTH_CONFIG_PATH"] = str(auth)
    with mlflow_server(cluster.database("users"), tmp_path, options=("--app-name", "basic-auth"), extra=admin) as own:
        monkeypatch.setenv("MLFLOW_TRACKING_USERNAME", "admin")
        monkeypatch.setenv("MLFLOW_TRACKING_PASSWORD", "wrong-s3cret")
        with pytest.raises(TrackingError, match="password") as caught:
            open_tracker(own.url, experiment="users", artifact_root=None)
        assert "s3cret" not in str(caught.value)
        monkeypatch.setenv("MLFLOW_TRACKING_PASSWORD", admin["MLFLOW_AUTH_ADMIN_PASSWORD"])
        tracker = open_tracker(own.url, experiment="users", artifact_root=None)
        run_id = tracker.start_parent("users", {"a": 1}, {})
        tracker.log_file(run_id, Path(__file__))
        tracker.finish(run_id, "FINISHED")
        assert "s3cret" not in own.log.read_text()
