"""What a Ray cluster has, asked without joining it; never waits long."""

import json
import os
import re
import socket
import subprocess
import sys
from importlib.util import find_spec

from coordexp.errors import ResourceError

Nodes = list[dict[str, float]]

CONNECT_SECONDS = 3.0
ANSWER_SECONDS = 12.0
_REASON_CHARACTERS = 160  # of an error that may be a page
_ALIVE = 0  # GcsNodeInfo.GcsNodeState
_NO_CLUSTER = 3  # exit code of the process that asks
_HOST_AND_PORT = re.compile(r"(?:(?P<scheme>[a-z]+)://)?(?P<host>\[[0-9a-fA-F:]+\]|[^:/\[\]]+):(?P<port>[0-9]{1,5})/?")


def cluster_address() -> str | None:
    """Return the cluster that an ablation would join (``RAY_ADDRESS``); None: it starts a private Ray."""
    return os.environ.get("RAY_ADDRESS") or None


def local_nodes(num_gpus: int) -> Nodes:
    """Return this machine as the one node that a private Ray would have."""
    return [{"CPU": float(len(os.sched_getaffinity(0))), "GPU": float(num_gpus)}]


def has_ray() -> bool:
    """Tell whether Ray is installed, without importing it."""
    return find_spec("ray") is not None


def beginning(error: BaseException) -> str:
    """Return the beginning of an error that may be a page, as one line."""
    return " ".join(str(error).split())[:_REASON_CHARACTERS]


def nodes_of(
    address: str, *, connect_seconds: float = CONNECT_SECONDS, seconds: float = ANSWER_SECONDS
) -> Nodes | None:
    """Return the resources of each living node of a cluster.

    The question is asked by another process, which is ended if it waits: Ray itself would try for minutes.

    Args:
        address: what ``RAY_ADDRESS`` says: ``host:port``, ``auto`` or ``ray://host:port``.
        connect_seconds: for the port to answer.
        seconds: for the cluster to answer.

    Returns:
        One mapping a node; None for a cluster behind ``ray://``, which can only be joined.

    Raises:
        ResourceError: if nothing answers there, or no Ray.
    """
    match = _HOST_AND_PORT.fullmatch(address)
    if match is not None:
        if match["scheme"] not in (None, "ray"):
            raise ResourceError(
                f"RAY_ADDRESS is {address!r}, the address for submitting jobs; expected host:port of the head node, "
                "ray://host:port, or none at all (a submitted job gets it by itself)"
            )
        _connect(match["host"].strip("[]"), int(match["port"]), address, seconds=connect_seconds)
    elif address != "auto":
        raise ResourceError(f"RAY_ADDRESS is {address!r}; expected host:port, ray://host:port or auto")
    return None if match is not None and match["scheme"] == "ray" else _ask(address, seconds=seconds)


def _connect(host: str, port: int, address: str, *, seconds: float) -> None:
    try:
        socket.create_connection((host, port), timeout=seconds).close()
    except (OSError, OverflowError) as error:  # OverflowError: a port above 65535
        reason = "no answer in time" if isinstance(error, TimeoutError) else str(error)
        raise ResourceError(
            f"no Ray answers at RAY_ADDRESS {address} ({reason}); start the cluster, correct the address, or unset it "
            "for a private Ray on this machine"
        ) from None


def _ask(address: str, *, seconds: float) -> Nodes:
    try:
        done = subprocess.run(
            [sys.executable, "-m", "coordexp.cluster.probe", address],
            capture_output=True,
            text=True,
            timeout=seconds,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise ResourceError(
            f"something listens at RAY_ADDRESS {address}, but does not answer as Ray within {seconds:g} s; "
            "expected the port of a head node's GCS (6379 unless chosen otherwise)"
        ) from None
    if done.returncode == _NO_CLUSTER:
        raise ResourceError(
            "RAY_ADDRESS is auto, but no Ray cluster runs on this machine; start one (ray start --head), or unset "
            "RAY_ADDRESS for a private Ray"
        )
    if "AuthenticationError" in done.stderr:
        raise ResourceError(
            f"the Ray cluster at RAY_ADDRESS {address} wants a token: export RAY_AUTH_MODE=token, with the cluster's "
            "token in ~/.ray/auth_token or RAY_AUTH_TOKEN"
        )
    if done.returncode != 0:
        reason = (done.stderr.strip().splitlines() or ["no reason given"])[-1][:_REASON_CHARACTERS]
        raise ResourceError(f"the Ray cluster at RAY_ADDRESS {address} cannot be asked what it has ({reason})")
    nodes: Nodes = json.loads(done.stdout.strip().splitlines()[-1])
    return nodes


def _main(address: str) -> int:
    # Joining would take seconds and leave a driver's logs behind; there is no public way to ask without it.
    from ray._private.authentication.authentication_token_setup import maybe_enable_token_auth_if_token_available
    from ray._private.services import canonicalize_bootstrap_address
    from ray._raylet import GcsClient  # pyright: ignore[reportAttributeAccessIssue] - compiled, without annotations

    if address == "auto":  # as ray.init does; with an address of its own it leaves that to the user
        maybe_enable_token_auth_if_token_available(warn_if_disabled=False)
    try:
        found = canonicalize_bootstrap_address(address)
    except ConnectionError:  # auto, and nothing runs here
        return _NO_CLUSTER
    nodes = GcsClient(address=found).get_all_node_info(timeout=ANSWER_SECONDS)
    resources = [dict(node.resources_total) for node in nodes.values() if node.state == _ALIVE]
    sys.stdout.write(json.dumps(resources) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(_main(sys.argv[1]))
