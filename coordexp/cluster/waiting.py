"""What a run waits for on a cluster: what it needs, what is free and who holds the rest, by Ray's public state API."""

import json
import os
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import psutil
import ray
from pydantic import TypeAdapter
from ray.exceptions import RayError
from ray.util.state import list_actors, list_jobs, list_placement_groups, list_tasks
from ray.util.state.exception import RayStateApiException

from coordexp.cluster.capacity import count_slots, needs_text, resources_text
from coordexp.cluster.last_words import answers
from coordexp.config.schema import Cluster
from coordexp.errors import ResourceError, shortened
from coordexp.runs.executor import Surroundings
from coordexp.runs.plan import RunPlan
from coordexp.runs.stop import SUBMITTED_ENV

_KINDS = ("CPU", "GPU")
_STATE_SECONDS = 5  # for an answer of the state API
_TASK_SECONDS = 30.0  # for a small task on the head; its process imports Ray first
_ENTRYPOINT_CHARACTERS = 60
_MAX_HOLDERS = 4
# Errors of asking: the head or its dashboard is gone, or answers late. Then the wait is not explained.
_UNKNOWN = (RayStateApiException, RayError, OSError, RuntimeError, ValueError)
Resources = Mapping[str, float]
_Row = TypeVar("_Row")


@dataclass(frozen=True)
class _Holder:
    """What Ray's state says of an actor or a task."""

    job_id: str
    name: str | None = None
    type: str | None = None
    node_id: str | None = None
    placement_group_id: str | None = None
    required_resources: dict[str, float] | None = None

    def resources(self) -> dict[str, float]:
        """Return the CPUs and GPUs that it holds or waits for."""
        return _cpus_and_gpus(self.required_resources or {})


@dataclass(frozen=True)
class _Bundle:
    unit_resources: dict[str, float]


@dataclass(frozen=True)
class _Group:
    """What Ray's state says of a placement group: the workers of a run, or of another job."""

    creator_job_id: str
    bundles: list[_Bundle] | None = field(default=None)


class ClusterSurroundings(Surroundings):
    """Explains waits on the cluster that this process has joined."""

    def trouble(self) -> str | None:
        """Return a sentence while the head does not answer; None while it does."""
        address = ray.get_runtime_context().gcs_address
        if answers(address):
            return None
        return (
            f"the Ray head at {address} does not answer; if it stays away, Ray ends this command after a minute, and "
            "the same command continues once the head is there again"
        )

    def explain_wait(self, waiting: Sequence[RunPlan], running: Sequence[RunPlan]) -> str | None:
        """Return what runs without workers wait for; None if they have places, or if Ray does not tell."""
        if not waiting:
            return None
        try:
            own_job = ray.get_runtime_context().get_job_id()
            if not any(group.creator_job_id == own_job for group in _groups("PENDING")):
                return None  # the runs have places, and their workers are starting
            needs = needs_text(waiting[0].config.cluster)
            return wait_sentence(needs, own_job=own_job, running=[plan.name for plan in running])
        except _UNKNOWN:
            return None


def explain_actors(needs: str) -> str | None:
    """Return what actors of this command wait for; None if they have places, or if Ray does not tell."""
    try:
        own_job = ray.get_runtime_context().get_job_id()
        free = _cpus_and_gpus(ray.available_resources())
        for actor in _actors("PENDING_CREATION"):
            # An actor that has its place is pending, too, until its process has started.
            lacks_place = any(actor.resources()[kind] > free[kind] for kind in _KINDS)
            if actor.job_id == own_job and lacks_place:
                return wait_sentence(needs, own_job=own_job)
        return None
    except _UNKNOWN:
        return None


def wait_sentence(needs: str, *, own_job: str, running: Sequence[str] = ()) -> str:
    """Return what a run without a place needs, what is free, who holds the rest, and how to end the wait.

    Args:
        needs: what is needed, as the beginning of a sentence.
        own_job: Ray's number of this command.
        running: names of the runs of this command that have places.
    """
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    needed = f"waits for a place: {needs}"
    number = submission_number()
    way_out = "Ctrl-C ends the wait" if number is None else f"ray job stop {number} ends the wait"
    if not offers_cpus(nodes):
        return f"{needed}; no node offers CPUs yet, and work begins when one joins; {way_out}"
    free = resources_text([_cpus_and_gpus(ray.available_resources())])
    holders: list[str] = []
    for name, resources in _held(own_job, running).items():
        verb = "hold" if name.startswith("runs ") else "holds"
        holders.append(f"{name} {verb} {resources_text([resources])}")
    held = "; ".join(holders) or "nobody that Ray names holds the rest"
    return f"{needed}; free: {free} of {resources_text(nodes)}; {held}; {way_out}"


def offers_cpus(nodes: Iterable[Resources]) -> bool:
    return any(node.get("CPU", 0.0) > 0 for node in nodes)


def slots_on_cluster(cluster: Cluster) -> int:
    """Return how many runs the joined cluster holds at once.

    If a run does not fit on the nodes of now, it waits as long as nodes may still join: with an autoscaler, or if the
    head alone is there and offers no CPUs.

    Raises:
        ResourceError: if a run can never fit; Ray itself would wait for ever.
    """
    nodes = nodes_for_work()
    try:
        return count_slots(cluster, nodes.left)
    except ResourceError:
        if not offers_cpus(nodes.whole) or grows_by_itself():
            return cluster.max_concurrent_runs or 1
    count_slots(cluster, nodes.whole)  # raises if a run would not fit even without the entrypoint
    raise ResourceError(f"{needs_text(cluster)}, but {entrypoint_text(nodes.whole)}")


@dataclass(frozen=True)
class Nodes:
    """What the nodes of the joined cluster offer."""

    whole: list[dict[str, float]]
    left: list[dict[str, float]]  # without what the entrypoint of this job holds as long as this command runs


def nodes_for_work() -> Nodes:
    """Return what the nodes that are alive offer, no matter who holds it now."""
    nodes = {node["NodeID"]: dict[str, float](node["Resources"]) for node in ray.nodes() if node["Alive"]}
    held = held_by_entrypoint()
    left = [_less(resources, held.get(node, {})) for node, resources in nodes.items()]
    return Nodes(list(nodes.values()), left)


def entrypoint_text(nodes: Sequence[Resources]) -> str:
    """Return a clause on an entrypoint of this job that leaves no room for work, and how to submit the job."""
    held = resources_text(list(held_by_entrypoint().values()))
    return (
        f"the job's own entrypoint holds {held} of {resources_text(nodes)} as long as this command runs, so that "
        "no work can ever begin; submit the job without --entrypoint-num-cpus and --entrypoint-num-gpus"
    )


def _less(resources: Resources, held: Resources) -> dict[str, float]:
    return {kind: amount - held.get(kind, 0.0) for kind, amount in resources.items()}


def submission_number() -> str | None:
    """Return the number of the submitted job whose entrypoint this process is; None if it was not submitted."""
    submitted = json.loads(os.environ.get(SUBMITTED_ENV, "{}"))
    return (submitted.get("metadata") or {}).get("job_submission_id")


def held_by_entrypoint() -> dict[str, Resources]:
    """Return what the entrypoint of this submitted job holds, by node. Ray runs it in an actor named after the job."""
    number = submission_number()
    if number is None:
        return {}
    try:
        actors = [actor for actor in _actors() if (actor.name or "").endswith(number)]
    except _UNKNOWN:
        return {}
    held: dict[str, Resources] = {}
    for actor in actors:
        if actor.node_id and any(actor.resources().values()):
            held[actor.node_id] = actor.resources()
    return held


def grows_by_itself() -> bool:
    """Return whether an autoscaler may add nodes. Only the head knows: its process, or KubeRay's command, is there."""
    look = ray.remote(has_autoscaler).options(num_cpus=0, resources={"node:__internal_head__": 0.001}, max_retries=0)
    try:
        return ray.get(look.remote(), timeout=_TASK_SECONDS)
    except _UNKNOWN:
        return False


def has_autoscaler() -> bool:
    """Return whether this machine is the head of a cluster that adds nodes by itself."""
    if "--no-monitor" in os.environ.get("KUBERAY_GEN_RAY_START_CMD", ""):  # KubeRay's autoscaler has its own container
        return True
    option = "--autoscaling-config="
    for process in psutil.process_iter(["cmdline"]):
        for argument in process.info["cmdline"] or []:
            if argument.startswith(option) and argument != option:
                return True
    return False


def _held(own_job: str, running: Sequence[str]) -> dict[str, dict[str, float]]:
    """Return the CPUs and GPUs that are held, by a name for who holds them, of the first few holders."""
    held: dict[str, dict[str, float]] = defaultdict(lambda: dict.fromkeys(_KINDS, 0.0))
    names = _names_of_jobs()
    names[own_job] = f"runs of this command ({', '.join(running)})" if running else "this command"

    def add(job: str, resources: Resources) -> None:
        if not any(resources.values()):
            return
        holder = held[names.get(job, f"job {job}")]
        for kind, amount in resources.items():
            holder[kind] += amount

    for group in _groups("CREATED"):
        for bundle in group.bundles or []:
            add(group.creator_job_id, _cpus_and_gpus(bundle.unit_resources))
    for actor in _actors():
        if not actor.placement_group_id:
            submitted = [number for number in names if (actor.name or "").endswith(number)]
            add(submitted[0] if submitted else actor.job_id, actor.resources())
    tasks = list_tasks(filters=[("state", "=", "RUNNING")], detail=True, timeout=_STATE_SECONDS)
    for task in _read(_Holder, tasks):
        if task.type == "NORMAL_TASK" and not task.placement_group_id:
            add(task.job_id, task.resources())
    return {name: _cpus_and_gpus(resources) for name, resources in list(held.items())[:_MAX_HOLDERS]}


def _names_of_jobs() -> dict[str, str]:
    """Return a name for each running job, by Ray's number of the job and by the number of its submission."""
    names: dict[str, str] = {}
    for job in list_jobs(filters=[("status", "=", "RUNNING")], timeout=_STATE_SECONDS):
        command = " ".join((job.entrypoint or "").split())
        if len(command) > _ENTRYPOINT_CHARACTERS:
            command = f"{command[:_ENTRYPOINT_CHARACTERS]}..."
        number = job.submission_id or job.job_id or ""
        name = shortened(f"job {number} ({command})" if command else f"job {number}")
        names |= {key: name for key in (job.job_id, job.submission_id) if key}
    return names


def _groups(state: str) -> list[_Group]:
    return _read(_Group, list_placement_groups(filters=[("state", "=", state)], detail=True, timeout=_STATE_SECONDS))


def _actors(state: str = "ALIVE") -> list[_Holder]:
    return _read(_Holder, list_actors(filters=[("state", "=", state)], detail=True, timeout=_STATE_SECONDS))


def _read(kind: type[_Row], states: Sequence[object]) -> list[_Row]:
    """Return rows of the state API as objects of ``kind``, with checked types, which Ray's own classes lack."""
    adapter: TypeAdapter[_Row] = TypeAdapter(kind)
    return [adapter.validate_python(vars(state)) for state in states]


def _cpus_and_gpus(resources: Resources) -> dict[str, float]:
    # Rounded to what Ray counts, since sums of shares are inexact.
    return {kind: round(resources.get(kind, 0.0), 4) for kind in _KINDS}
