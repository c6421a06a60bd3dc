"""The Kubernetes files: fields that exist, no root, no secret in clear, and resources as the experiment asks for."""

import re
import shlex
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
import yaml
from jsonschema import Draft202012Validator

from coordexp.cli.main import parse
from coordexp.cluster.capacity import count_slots, workers_on
from coordexp.config import load_config
from coordexp.config.schema import ExperimentConfig
from coordexp.runs.stop import GRACE_ENV
from tests.support.kuberay_fields import OBJECTS

ROOT = Path(__file__).parents[3]
KUBERAY = ROOT / "ray_jobs" / "kuberay"
IN_IMAGE = "/opt/coordexp"  # the image's copy of the repository
_SECRET_NAME = re.compile(r"TOKEN|PASSWORD|SECRET|API_?KEY|CREDENTIAL|TRACKING_URI|USERNAME")


def documents() -> dict[str, dict]:
    found: dict[str, dict] = {}
    for path in sorted(KUBERAY.glob("*.yaml")):
        for number, document in enumerate(yaml.safe_load_all(path.read_text(encoding="utf-8"))):
            found[f"{path.name}-{number}"] = document
    return found


DOCUMENTS = documents()
JOB = DOCUMENTS["rayjob.yaml-0"]
CLUSTERS = {"raycluster": DOCUMENTS["raycluster.yaml-0"]["spec"], "rayjob": JOB["spec"]["rayClusterSpec"]}


def pods(document: Mapping) -> Iterator[tuple[str, dict]]:
    """Yield every pod of an object, by what it is."""
    spec = document["spec"]
    cluster = spec.get("rayClusterSpec", spec)
    if "headGroupSpec" in cluster:
        yield "head", cluster["headGroupSpec"]["template"]["spec"]
        for group in cluster["workerGroupSpecs"]:
            yield group["groupName"], group["template"]["spec"]
    if "submitterPodTemplate" in spec:
        yield "submitter", spec["submitterPodTemplate"]["spec"]


def broken_rules(document: Mapping) -> list[str]:
    """Return what of our own rules an object breaks."""
    found = ["a Secret in a file"] if document["kind"] == "Secret" else []
    for name, pod in pods(document):
        security = pod.get("securityContext", {})
        if not security.get("runAsNonRoot") or not security.get("runAsUser") or not security.get("runAsGroup"):
            found.append(f"{name}: may run as root")
        if security.get("seccompProfile") != {"type": "RuntimeDefault"}:
            found.append(f"{name}: no seccomp profile")
        for container in pod["containers"]:
            found += [f"{name}: {line}" for line in _container_faults(container)]
    return found


def _container_faults(container: Mapping) -> Iterator[str]:
    tag = container["image"].rpartition(":")[2]
    if "/" in tag or tag in ("", "latest", "nightly"):
        yield f"image {container['image']} is not pinned"
    security = container.get("securityContext", {})
    if security.get("allowPrivilegeEscalation") is not False or security.get("runAsUser") == 0:
        yield "may gain privileges"
    if security.get("capabilities") != {"drop": ["ALL"]} or security.get("privileged"):
        yield "keeps capabilities"
    for kind in ("requests", "limits"):
        if not {"cpu", "memory"} <= container.get("resources", {}).get(kind, {}).keys():
            yield f"no {kind}"
    for variable in container.get("env", []):
        if _SECRET_NAME.search(variable["name"]) and "secretKeyRef" not in variable.get("valueFrom", {}):
            yield f"{variable['name']} in clear"


def faults(document: Mapping, schema: Mapping) -> list[str]:
    """Return what of an object its schema does not know, misses or does not allow, by place."""
    return sorted(f"{error.json_path}: {error.message}" for error in Draft202012Validator(schema).iter_errors(document))


@pytest.mark.parametrize("name", DOCUMENTS)
def test_every_field_exists_and_our_rules_hold(name):
    document = DOCUMENTS[name]
    assert faults(document, OBJECTS[document["kind"]]) == []
    assert broken_rules(document) == []


def job_config() -> tuple[ExperimentConfig, list[str]]:
    """Return the configuration that the job's entrypoint loads, and its words."""
    words = shlex.split(JOB["spec"]["entrypoint"])
    local = [word.replace(IN_IMAGE, str(ROOT)) for word in words]
    assert Path(local[1]).is_file()
    options = parse([Path(local[1]).stem, *local[2:]])
    return load_config(options.config, options.overrides), words


def test_the_entrypoint_is_one_of_ours_and_reads_what_is_mounted():
    config, words = job_config()
    assert words[0] == "python"
    assert config.experiment.name == "coco_qwen3vl_4b"
    mounts = {mount["mountPath"] for _, pod in pods(JOB) for mount in pod["containers"][0].get("volumeMounts", [])}
    used = [config.experiment.runs_dir, config.data.train_images, config.data.val_images]
    used += [config.data.train_annotations, config.data.val_annotations]
    assert all(str(path).startswith(("/mnt/runs", "/mnt/data/")) for path in used)
    assert {"/mnt/runs", "/mnt/data", "/dev/shm"} <= mounts
    claims = {document["metadata"]["name"] for document in DOCUMENTS.values() if document["kind"].startswith("Pers")}
    for _, pod in pods(JOB):
        for volume in pod.get("volumes", []):
            assert volume.get("persistentVolumeClaim", {"claimName": "coordexp-runs"})["claimName"] in claims


@pytest.mark.parametrize("name", CLUSTERS)
def test_a_worker_pod_holds_exactly_one_run(name):
    config, _ = job_config()
    (group,) = CLUSTERS[name]["workerGroupSpecs"]
    resources = group["template"]["spec"]["containers"][0]["resources"]
    node = {"CPU": float(resources["limits"]["cpu"]), "GPU": float(resources["limits"]["nvidia.com/gpu"])}
    cluster = config.cluster
    assert workers_on(node, cpus=cluster.cpus_per_worker, gpus=cluster.gpus_per_worker) == cluster.num_workers
    assert node == {"CPU": 8.0 * cluster.cpus_per_worker, "GPU": 8.0 * cluster.gpus_per_worker}
    assert resources["requests"]["nvidia.com/gpu"] == resources["limits"]["nvidia.com/gpu"]
    assert count_slots(cluster, [{"CPU": 0.0}, *([node] * group["replicas"])]) == group["replicas"]
    assert 1 <= group["minReplicas"] <= group["replicas"] <= group["maxReplicas"]
    assert CLUSTERS[name]["headGroupSpec"]["rayStartParams"]["num-cpus"] == "0"


@pytest.mark.parametrize("name", CLUSTERS)
def test_the_cluster_wants_a_token_and_gives_time_to_stop(name):
    spec = CLUSTERS[name]
    assert spec["authOptions"] == {"mode": "token", "secretName": "coordexp-ray"}
    head = spec["headGroupSpec"]["template"]["spec"]["containers"][0]
    (grace,) = (variable["value"] for variable in head["env"] if variable["name"] == GRACE_ENV)
    assert int(grace) >= 60
    for _, pod in pods({"spec": spec}):
        (container,) = pod["containers"]
        assert {"startupProbe", "readinessProbe", "livenessProbe"} <= container.keys()
        (shm,) = (volume for volume in pod["volumes"] if volume["name"] == "shm")
        assert shm["emptyDir"]["medium"] == "Memory"
    for group in (spec["headGroupSpec"], *spec["workerGroupSpecs"]):
        assert int(group["rayStartParams"]["object-store-memory"]) <= 4 * 2**30  # within the head's /dev/shm


def test_versions_are_those_of_the_repository():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    dockerfile = (KUBERAY / "Dockerfile").read_text(encoding="utf-8")
    assert f'org.opencontainers.image.version="{project["version"]}"' in dockerfile
    images = {container["image"] for document in DOCUMENTS.values() for _, pod in pods(document)
              for container in pod["containers"]}  # fmt: skip
    assert images == {f"registry.example.com/coordexp:{project['version']}"}
    assert f"--tag {images.pop()}" in dockerfile
    (ray,) = re.findall(r"^ray==(.*)$", (ROOT / "constraints.txt").read_text(encoding="utf-8"), flags=re.MULTILINE)
    assert {spec["rayVersion"] for spec in CLUSTERS.values()} == {ray}
