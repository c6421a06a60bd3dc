"""Ablations against a real MLflow server as people have it: older, behind a path, behind a proxy with a limit."""

import re
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from mlflow import MlflowClient

from coordexp.config.schema import ExperimentConfig
from coordexp.doctor.machine import examine_tracking
from coordexp.errors import TrackingError
from coordexp.findings import collect
from coordexp.report.records.load import load_experiment
from coordexp.runs.folder import RunFolder
from coordexp.tracking import open_tracker
from coordexp.tracking.server import NoLoggedModelsError
from tests.support.ablation import StandIn, make_config, run
from tests.support.mlflow_server import Server, mlflow_server
from tests.support.ports import free_port
from tests.support.tracking_proxy import LOGGED_MODELS, self_signed_certificate, tracking_proxy

LIMIT = 200_000
LARGE = 300_000
pytestmark = pytest.mark.timeout(200)
UNREPORTED = pytest.mark.usefixtures("unreported")


@pytest.fixture(scope="module")
def server(migrated_database: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("server")
    database = shutil.copy(migrated_database, folder / "mlflow.db")
    with mlflow_server(f"sqlite:///{database}", folder) as running:
        yield running


class WritesLargeFiles(StandIn):
    """Writes a merged checkpoint and detections that are larger than what a proxy takes."""

    def __call__(self, config, *, reporter, print_line):
        super().__call__(config, reporter=reporter, print_line=print_line)
        folder = RunFolder.of(config)
        (folder.merged / "model.safetensors").write_bytes(b"0" * LARGE)
        (folder.merged / "config.json").write_text("{}")
        (folder.evaluation("final").path / "answers.jsonl").write_bytes(b"1" * LARGE)


def config_for(base: Path, runs_dir: Path, url: str, name: str) -> ExperimentConfig:
    return make_config(base, runs_dir, name, tracking={"uri": url})


def doctor(config: ExperimentConfig) -> list[tuple[str, str]]:
    findings, _ = collect(examine_tracking(config))
    return [(finding.verdict, finding.sentence) for finding in findings]


def runs_of(server: Server, name: str) -> dict[str, dict[str, str]]:
    """Return the tags of each finished run."""
    client = MlflowClient(server.url)
    runs = client.search_runs([client.get_experiment_by_name(name).experiment_id], "tags.seed = '0'")
    assert {item.info.status for item in runs} == {"FINISHED"}
    return {item.info.run_name: dict(item.data.tags) | {"run_id": item.info.run_id} for item in runs}


def artifacts(server: Server, run_id: str, folder: str | None = None) -> set[str]:
    return {item.path for item in MlflowClient(server.url).list_artifacts(run_id, folder)}


@UNREPORTED
def test_a_server_without_a_list_of_models_records_all_else(base, server, tmp_path):
    with tracking_proxy(server.url, hidden=LOGGED_MODELS) as old:
        config = config_for(base, tmp_path, old.url, "old")
        (before, told), last = doctor(config)
        assert (before, last) == ("warning", ("ok", f"{old.url} answers"))
        assert "merged_checkpoint_uri" in told
        code, output = run(config, StandIn())
        assert (code, output.count(told), "not recorded" in output) == (0, 1, False)
        for name, tags in runs_of(server, "old").items():
            assert tags["merged_checkpoint"] == str(tmp_path / "old" / name / "merged")
            assert tags["merged_checkpoint_uri"] == f"runs:/{tags['run_id']}/merged"
            assert artifacts(server, tags["run_id"], "merged") == {"merged/model.safetensors"}
        again = StandIn()
        assert run(config, again)[0] == 0
        assert again.done == []


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (404, b""),  # Azure
        (404, b'{"detail": "Not Found"}'),  # a gateway
        (404, b'{"error_code": "ENDPOINT_NOT_FOUND", "message": "no such endpoint"}'),
        (405, b"<title>405 Method Not Allowed</title>"),
        (501, b"not implemented"),
        (403, b'{"error_code": "PERMISSION_DENIED", "message": "not for you"}'),
    ],
)
def test_what_other_servers_answer_where_they_list_no_models(server, status, body):
    with tracking_proxy(server.url, hidden=LOGGED_MODELS, hidden_status=status) as other:
        other.hidden_body = body
        tracker = open_tracker(other.url, experiment="others", artifact_root=None)
        run_id = tracker.start_parent(f"others{status}{len(body)}", {"a": 1}, {})
        with pytest.raises(NoLoggedModelsError):
            tracker.log_model(run_id, "A-s0", step=1, params={}, tags={"uri": "file://node/a"})


@UNREPORTED
def test_a_server_behind_a_path(base, server, tmp_path):
    with tracking_proxy(server.url, path="/mlflow") as behind:
        config = config_for(base, tmp_path, behind.url, "path")
        assert doctor(config) == [("ok", f"{behind.url} answers")]
        assert run(config, StandIn())[0] == 0
        data = load_experiment(behind.url, "path", runs_dir=tmp_path / "elsewhere")
        assert {item.metrics["constrained/expected/AP"] for item in data.runs} == {0.25, 0.5}
        root = behind.url.removesuffix("/mlflow")
        assert [verdict for verdict, _ in doctor(config_for(base, tmp_path, root, "path"))] == ["failure"]
    for tags in runs_of(server, "path").values():
        assert "merged/model.safetensors" in artifacts(server, tags["run_id"], "merged")
    assert {request.split()[1].split("/")[1] for request in behind.requests if root not in request} >= {"mlflow"}


@UNREPORTED
def test_a_proxy_that_takes_no_large_files(base, server, tmp_path):
    with tracking_proxy(server.url, max_body=LIMIT) as proxy:
        config = config_for(base, tmp_path, proxy.url, "limit")
        (verdict, told), _ = doctor(config)
        assert verdict == "warning"
        assert "client_max_body_size" in told
        code, output = run(config, WritesLargeFiles())
        assert code == 0
        assert "not recorded" not in output
        assert re.search(r"\b4 files .*\b413\b", output)  # of two runs
        for name, tags in runs_of(server, "limit").items():
            stored = artifacts(server, tags["run_id"], "eval/final")
            assert stored == {"eval/final/constrained"}, "the small ones"
            assert artifacts(server, tags["run_id"], "merged") == set(), "no half of a checkpoint"
            assert tags["merged_checkpoint_uri"].endswith(str(tmp_path / "limit" / name / "merged"))

        proxy.max_body = None
        again = WritesLargeFiles()
        code, output = run(config, again)
        assert (code, again.done, "413" in output) == (0, [], False)
    for tags in runs_of(server, "limit").values():
        assert "eval/final/answers.jsonl" in artifacts(server, tags["run_id"], "eval/final")
        assert tags["merged_checkpoint_uri"] == f"runs:/{tags['run_id']}/merged"
        assert artifacts(server, tags["run_id"], "merged") == {"merged/model.safetensors", "merged/config.json"}


def test_an_experiment_in_the_trash_is_refused_by_doctor_and_by_the_run(base, server, tmp_path):
    client = MlflowClient(server.url)
    config = config_for(base, tmp_path, server.url, "trash")
    experiment_id = client.create_experiment("trash")
    client.delete_experiment(experiment_id)
    ((verdict, sentence),) = doctor(config)
    assert verdict == "failure"
    assert f"mlflow experiments restore --experiment-id {experiment_id}" in sentence
    with pytest.raises(TrackingError) as caught:
        run(config, StandIn())
    assert str(caught.value) == sentence
    client.restore_experiment(experiment_id)
    assert doctor(config) == [("ok", f"{server.url} answers")]


@UNREPORTED
def test_an_experiment_that_is_deleted_while_it_runs(base, server, tmp_path):
    """What is trained stays, and the same command sends it once the experiment is restored."""
    client = MlflowClient(server.url)

    class Deletes(StandIn):
        def __call__(self, config, *, reporter, print_line):
            super().__call__(config, reporter=reporter, print_line=print_line)
            if config.experiment.group == "C":
                client.delete_experiment(client.get_experiment_by_name("deleted").experiment_id)

    config = config_for(base, tmp_path, server.url, "deleted")
    code, output = run(config, Deletes())
    assert code == 1
    assert "deleted" in output
    assert "the same command sends it" in output
    client.restore_experiment(client.get_experiment_by_name("deleted").experiment_id)
    again = StandIn()
    assert (run(config, again)[0], again.done) == (0, [])
    assert set(runs_of(server, "deleted")) == {"A-s0", "C-s0"}


@UNREPORTED
def test_a_certificate_that_is_trusted_by_its_file(base, server, tmp_path, monkeypatch):
    certificate = self_signed_certificate(tmp_path)
    monkeypatch.setenv("MLFLOW_TRACKING_SERVER_CERT_PATH", str(certificate))
    with tracking_proxy(server.url, certificate=certificate) as proxy:
        config = config_for(base, tmp_path, proxy.url, "tls")
        assert doctor(config) == [("ok", f"{proxy.url} answers")]
        assert run(config, StandIn())[0] == 0
    assert set(runs_of(server, "tls")) == {"A-s0", "C-s0"}


NGINX = """
daemon off; pid {folder}/pid; error_log {folder}/error.log;
events {{}}
http {{
  access_log off;
  client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy; fastcgi_temp_path {folder}/fastcgi;
  uwsgi_temp_path {folder}/uwsgi; scgi_temp_path {folder}/scgi;
  server {{
    listen 127.0.0.1:{port}; client_max_body_size {limit};
    location /tools/mlflow/ {{ proxy_pass {target}/; proxy_request_buffering off; proxy_buffering off; }}
  }}
}}
"""


def test_nginx_with_a_path_and_a_limit(base, server, tmp_path):
    program = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin")
    if program is None:
        pytest.skip("nginx is not installed")
    port = free_port()
    settings = tmp_path / "nginx.conf"
    settings.write_text(NGINX.format(folder=tmp_path, port=port, limit=50_000, target=server.url))
    process = subprocess.Popen([program, "-c", str(settings), "-p", str(tmp_path), "-e", str(tmp_path / "start.log")])
    try:
        url = f"http://127.0.0.1:{port}/tools/mlflow"
        config = config_for(base, tmp_path, url, "nginx")
        verdicts: list[str] = []
        end = time.monotonic() + 30
        while verdicts != ["warning", "ok"] and time.monotonic() < end:
            time.sleep(0.2)
            verdicts = [verdict for verdict, _ in doctor(config)]
        assert verdicts == ["warning", "ok"]
        code, output = run(config, WritesLargeFiles())
    finally:
        process.terminate()
        process.wait(20)
    assert (code, "not recorded" in output) == (0, False), output
    assert re.search(r"\b4 files .*\b413\b", output)
    client = MlflowClient(server.url)
    (parent,) = client.search_runs([client.get_experiment_by_name("nginx").experiment_id], "tags.group = 'ablation'")
    assert "report/ap.svg" in artifacts(server, parent.info.run_id, "report")
    assert "report/losses.png" not in artifacts(server, parent.info.run_id, "report")
    assert re.search(r"the report is in MLflow .*\btoo large\b", output)
    assert set(runs_of(server, "nginx")) == {"A-s0", "C-s0"}
