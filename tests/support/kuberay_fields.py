"""The fields of KubeRay's and Kubernetes' objects that our files use, by hand, and what does not fit them.

Source of the first: the field reference of KubeRay v1.6.2, generated from the types that its CRDs are made of
(``docs/reference/api.md`` at 0a9eabde561ab59ab4bbe626072c359da9214484). Of the second: Kubernetes' API, v1.32.
"""

import re
from dataclasses import dataclass

QUANTITY = re.compile(r"[0-9]+(\.[0-9]+)?(m|k|Ki|M|Mi|G|Gi|T|Ti)?")


@dataclass(frozen=True)
class Map:
    """Any names, values of one shape."""

    of: object


@dataclass(frozen=True)
class Fields:
    """Known names only; some must be there."""

    known: dict[str, object]
    required: frozenset[str] = frozenset()


def fields(*required: str, **known: object) -> Fields:
    return Fields(known, frozenset(required))


_METADATA = fields(name=str, labels=Map(str), annotations=Map(str))
_KEY_REF = fields("name", "key", name=str, key=str, optional=bool)
_ENV = fields("name", name=str, value=str, valueFrom=fields(secretKeyRef=_KEY_REF))
_PROBE = fields(
    "httpGet",
    httpGet=fields("port", path=str, port=int),
    initialDelaySeconds=int,
    periodSeconds=int,
    timeoutSeconds=int,
    failureThreshold=int,
    successThreshold=int,
)
_RESOURCES = fields(requests=Map(QUANTITY), limits=Map(QUANTITY))
_CONTAINER_SECURITY = fields(
    allowPrivilegeEscalation=bool,
    capabilities=fields(add=[str], drop=[str]),
    privileged=bool,
    readOnlyRootFilesystem=bool,
    runAsUser=int,
)
_CONTAINER = fields(
    "name",
    name=str,
    image=str,
    imagePullPolicy={"Always", "IfNotPresent", "Never"},
    workingDir=str,
    command=[str],
    args=[str],
    ports=[fields("containerPort", containerPort=int, name=str, protocol={"TCP", "UDP", "SCTP"})],
    env=[_ENV],
    resources=_RESOURCES,
    securityContext=_CONTAINER_SECURITY,
    startupProbe=_PROBE,
    readinessProbe=_PROBE,
    livenessProbe=_PROBE,
    volumeMounts=[fields("name", "mountPath", name=str, mountPath=str, readOnly=bool, subPath=str)],
)
_VOLUME = fields(
    "name",
    name=str,
    persistentVolumeClaim=fields("claimName", claimName=str, readOnly=bool),
    emptyDir=fields(medium={"", "Memory"}, sizeLimit=QUANTITY),
)
_POD_SECURITY = fields(
    runAsNonRoot=bool,
    runAsUser=int,
    runAsGroup=int,
    fsGroup=int,
    fsGroupChangePolicy={"OnRootMismatch", "Always"},
    seccompProfile=fields("type", type={"RuntimeDefault", "Localhost", "Unconfined"}),
)
_TOLERATION = fields(
    key=str, operator={"Exists", "Equal"}, value=str, effect={"NoSchedule", "PreferNoSchedule", "NoExecute"}
)
POD = fields(
    "spec",
    metadata=_METADATA,
    spec=fields(
        "containers",
        containers=[_CONTAINER],
        volumes=[_VOLUME],
        securityContext=_POD_SECURITY,
        restartPolicy={"Always", "OnFailure", "Never"},
        automountServiceAccountToken=bool,
        serviceAccountName=str,
        terminationGracePeriodSeconds=int,
        tolerations=[_TOLERATION],
        nodeSelector=Map(str),
    ),
)
_AUTOSCALER = fields(
    resources=_RESOURCES,
    securityContext=_CONTAINER_SECURITY,
    idleTimeoutSeconds=int,
    upscalingMode={"Default", "Aggressive", "Conservative"},
    version={"v1", "v2"},
    image=str,
    imagePullPolicy=str,
    env=[_ENV],
)
_HEAD = fields(
    "template",
    "rayStartParams",
    template=POD,
    enableIngress=bool,
    rayStartParams=Map(str),
    serviceType=str,
    resources=Map(str),
    labels=Map(str),
)
_WORKERS = fields(
    "template",
    "rayStartParams",
    "groupName",
    "minReplicas",
    "maxReplicas",
    template=POD,
    groupName=str,
    replicas=int,
    minReplicas=int,
    maxReplicas=int,
    numOfHosts=int,
    idleTimeoutSeconds=int,
    rayStartParams=Map(str),
    resources=Map(str),
    labels=Map(str),
)
_CLUSTER_SPEC = fields(
    "headGroupSpec",
    authOptions=fields(mode={"disabled", "token"}, secretName=str, enableK8sTokenAuth=bool),
    autoscalerOptions=_AUTOSCALER,
    enableInTreeAutoscaling=bool,
    headGroupSpec=_HEAD,
    headServiceAnnotations=Map(str),
    rayVersion=str,
    suspend=bool,
    workerGroupSpecs=[_WORKERS],
)
_JOB_SPEC = fields(
    activeDeadlineSeconds=int,
    backoffLimit=int,
    clusterSelector=Map(str),
    entrypoint=str,
    entrypointNumCpus=float,
    jobId=str,
    metadata=Map(str),
    preRunningDeadlineSeconds=int,
    rayClusterSpec=_CLUSTER_SPEC,
    runtimeEnvYAML=str,
    shutdownAfterJobFinishes=bool,
    submissionMode={"K8sJobMode", "HTTPMode", "InteractiveMode", "SidecarMode"},
    submitterConfig=fields(backoffLimit=int),
    submitterPodTemplate=POD,
    suspend=bool,
    ttlSecondsAfterFinished=int,
)
_SELECTOR = fields(matchLabels=Map(str))
_PEER = fields(podSelector=_SELECTOR, namespaceSelector=_SELECTOR)
_RULE = fields(**{"from": [_PEER]}, ports=[fields(protocol={"TCP", "UDP"}, port=int)])
_POLICY = fields("podSelector", podSelector=_SELECTOR, policyTypes=[{"Ingress", "Egress"}], ingress=[_RULE])
_CLAIM = fields(
    accessModes=[{"ReadWriteOnce", "ReadOnlyMany", "ReadWriteMany"}], resources=_RESOURCES, storageClassName=str
)


def _object(api: str, kind: str, spec: Fields) -> Fields:
    required = ("apiVersion", "kind", "metadata", "spec")
    return fields(*required, apiVersion={api}, kind={kind}, metadata=_METADATA, spec=spec)


OBJECTS = {
    "RayCluster": _object("ray.io/v1", "RayCluster", _CLUSTER_SPEC),
    "RayJob": _object("ray.io/v1", "RayJob", _JOB_SPEC),
    "NetworkPolicy": _object("networking.k8s.io/v1", "NetworkPolicy", _POLICY),
    "PersistentVolumeClaim": _object("v1", "PersistentVolumeClaim", _CLAIM),
}


def faults(value: object, shape: object, where: str = "") -> list[str]:
    """Return a line for everything in ``value`` that its shape does not know, miss or allow."""
    if isinstance(shape, Fields):
        return _field_faults(value, shape, where)
    if isinstance(shape, Map):
        if not isinstance(value, dict):
            return [f"{where}: expected a mapping"]
        return [line for key, item in value.items() for line in faults(item, shape.of, f"{where}.{key}")]
    if isinstance(shape, list):
        if not isinstance(value, list):
            return [f"{where}: expected a list"]
        return [line for i, item in enumerate(value) for line in faults(item, shape[0], f"{where}[{i}]")]
    if isinstance(shape, set):
        return [] if value in shape else [f"{where}: {value!r} is none of {sorted(shape)}"]
    if isinstance(shape, re.Pattern):
        return [] if isinstance(value, str) and shape.fullmatch(value) else [f"{where}: {value!r} is no quantity"]
    assert isinstance(shape, type)
    fits = isinstance(value, shape) and not (shape is int and isinstance(value, bool))
    return [] if fits else [f"{where}: {value!r} is no {shape.__name__}"]


def _field_faults(value: object, shape: Fields, where: str) -> list[str]:
    if not isinstance(value, dict):
        return [f"{where}: expected fields"]
    found = [f"{where}.{name}: unknown" for name in value if name not in shape.known]
    found += [f"{where}.{name}: missing" for name in sorted(shape.required - value.keys())]
    for name, item in value.items():
        if name in shape.known:
            found += faults(item, shape.known[name], f"{where}.{name}")
    return found
