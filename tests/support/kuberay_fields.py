"""The fields of KubeRay's and Kubernetes' objects that our files use, by hand, as JSON schemas that know no other.

Source of the first: the field reference of KubeRay v1.6.2, generated from the types that its CRDs are made of
(``docs/reference/api.md`` at 0a9eabde561ab59ab4bbe626072c359da9214484). Of the second: Kubernetes' API, v1.32.
"""

Schema = dict[str, object]

TEXT: Schema = {"type": "string"}
NUMBER: Schema = {"type": "integer"}
SWITCH: Schema = {"type": "boolean"}
QUANTITY: Schema = {"type": "string", "pattern": r"^[0-9]+(\.[0-9]+)?(m|k|Ki|M|Mi|G|Gi|T|Ti)?$"}


def fields(*required: str, **known: Schema) -> Schema:
    """Known names only; some must be there."""
    return {"type": "object", "properties": known, "required": required, "additionalProperties": False}


def named(of: Schema) -> Schema:
    """Any names, values of one shape."""
    return {"type": "object", "additionalProperties": of}


def some(of: Schema) -> Schema:
    return {"type": "array", "items": of}


def one_of(*words: str) -> Schema:
    return {"enum": words}


METADATA = fields(name=TEXT, labels=named(TEXT))
KEY_REF = fields("name", "key", name=TEXT, key=TEXT, optional=SWITCH)
ENV = fields("name", name=TEXT, value=TEXT, valueFrom=fields(secretKeyRef=KEY_REF))
HTTP_GET = fields("port", path=TEXT, port=NUMBER)
PROBE = fields("httpGet", httpGet=HTTP_GET, periodSeconds=NUMBER, timeoutSeconds=NUMBER, failureThreshold=NUMBER)
RESOURCES = fields(requests=named(QUANTITY), limits=named(QUANTITY))
CONTAINER_SECURITY = fields(allowPrivilegeEscalation=SWITCH, capabilities=fields(drop=some(TEXT)))
CONTAINER = fields(
    "name",
    name=TEXT,
    image=TEXT,
    imagePullPolicy=one_of("Always", "IfNotPresent", "Never"),
    workingDir=TEXT,
    ports=some(fields("containerPort", containerPort=NUMBER, name=TEXT)),
    env=some(ENV),
    resources=RESOURCES,
    securityContext=CONTAINER_SECURITY,
    startupProbe=PROBE,
    readinessProbe=PROBE,
    livenessProbe=PROBE,
    volumeMounts=some(fields("name", "mountPath", name=TEXT, mountPath=TEXT)),
)
VOLUME = fields(
    "name",
    name=TEXT,
    persistentVolumeClaim=fields("claimName", claimName=TEXT),
    emptyDir=fields(medium=one_of("", "Memory"), sizeLimit=QUANTITY),
)
POD_SECURITY = fields(
    runAsNonRoot=SWITCH,
    runAsUser=NUMBER,
    runAsGroup=NUMBER,
    fsGroup=NUMBER,
    fsGroupChangePolicy=one_of("OnRootMismatch", "Always"),
    seccompProfile=fields("type", type=one_of("RuntimeDefault", "Localhost", "Unconfined")),
)
EFFECT = one_of("NoSchedule", "PreferNoSchedule", "NoExecute")
POD_SPEC = fields(
    "containers",
    containers=some(CONTAINER),
    volumes=some(VOLUME),
    securityContext=POD_SECURITY,
    restartPolicy=one_of("Always", "OnFailure", "Never"),
    automountServiceAccountToken=SWITCH,
    terminationGracePeriodSeconds=NUMBER,
    tolerations=some(fields(key=TEXT, operator=one_of("Exists", "Equal"), effect=EFFECT)),
)
POD = fields("spec", metadata=METADATA, spec=POD_SPEC)
AUTOSCALER = fields(
    resources=RESOURCES, securityContext=CONTAINER_SECURITY, idleTimeoutSeconds=NUMBER, version=one_of("v1", "v2")
)
WORKERS = fields(
    *("template", "rayStartParams", "groupName", "minReplicas", "maxReplicas"),
    template=POD,
    groupName=TEXT,
    replicas=NUMBER,
    minReplicas=NUMBER,
    maxReplicas=NUMBER,
    rayStartParams=named(TEXT),
)
CLUSTER = fields(
    "headGroupSpec",
    authOptions=fields(mode=one_of("disabled", "token"), secretName=TEXT),
    autoscalerOptions=AUTOSCALER,
    enableInTreeAutoscaling=SWITCH,
    headGroupSpec=fields("template", "rayStartParams", template=POD, rayStartParams=named(TEXT)),
    rayVersion=TEXT,
    workerGroupSpecs=some(WORKERS),
)
JOB = fields(
    activeDeadlineSeconds=NUMBER,
    backoffLimit=NUMBER,
    entrypoint=TEXT,
    jobId=TEXT,
    preRunningDeadlineSeconds=NUMBER,
    rayClusterSpec=CLUSTER,
    shutdownAfterJobFinishes=SWITCH,
    submissionMode=one_of("K8sJobMode", "HTTPMode", "InteractiveMode", "SidecarMode"),
    submitterConfig=fields(backoffLimit=NUMBER),
    submitterPodTemplate=POD,
    ttlSecondsAfterFinished=NUMBER,
)
SELECTOR = fields(matchLabels=named(TEXT))
PEER = fields(podSelector=SELECTOR, namespaceSelector=SELECTOR)
PORT = fields(protocol=one_of("TCP", "UDP"), port=NUMBER)
POLICY = fields(
    "podSelector",
    podSelector=SELECTOR,
    policyTypes=some(one_of("Ingress", "Egress")),
    ingress=some(fields(**{"from": some(PEER)}, ports=some(PORT))),
)
CLAIM = fields(accessModes=some(one_of("ReadWriteOnce", "ReadOnlyMany", "ReadWriteMany")), resources=RESOURCES)


def _object(api: str, kind: str, spec: Schema) -> Schema:
    required = ("apiVersion", "kind", "metadata", "spec")
    return fields(*required, apiVersion=one_of(api), kind=one_of(kind), metadata=METADATA, spec=spec)


OBJECTS = {
    "RayCluster": _object("ray.io/v1", "RayCluster", CLUSTER),
    "RayJob": _object("ray.io/v1", "RayJob", JOB),
    "NetworkPolicy": _object("networking.k8s.io/v1", "NetworkPolicy", POLICY),
    "PersistentVolumeClaim": _object("v1", "PersistentVolumeClaim", CLAIM),
}
