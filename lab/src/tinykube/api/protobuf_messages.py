"""Which fields the kinds have that come as protocol buffers: what ``kubectl create KIND`` can send of them.

By number as in the ``generated.proto`` files of k8s.io/api and k8s.io/apimachinery.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple, TypeAlias


class Field(NamedTuple):
    """A field.

    ``type`` (of a map's values) is text, bytes, flag, number, quantity, int-or-text, skip, or the fields of a
    message; ``set`` and ``count`` are flags and numbers that are as good as absent when false or 0.
    """

    name: str
    type: "str | Message"
    repeated: bool = False
    is_map: bool = False


Message: TypeAlias = Mapping[int, Field]


def _message(**fields: tuple[int, "str | Message"]) -> Message:
    return MappingProxyType({number: Field(name, kind) for name, (number, kind) in fields.items()})


def _listed(**fields: tuple[int, "str | Message"]) -> Message:
    return MappingProxyType(
        {number: Field(name, kind, repeated=True) for name, (number, kind) in fields.items()}
    )


def _mapped(**fields: tuple[int, "str | Message"]) -> Message:
    return MappingProxyType(
        {number: Field(name, kind, is_map=True) for name, (number, kind) in fields.items()}
    )


_OWNER = _message(
    kind=(1, "text"),
    name=(3, "text"),
    uid=(4, "text"),
    apiVersion=(5, "text"),
    controller=(6, "flag"),
    blockOwnerDeletion=(7, "flag"),
)
_OBJECT_META: Message = MappingProxyType(
    {
        1: Field("name", "text"),
        2: Field("generateName", "text"),
        3: Field("namespace", "text"),
        4: Field("selfLink", "skip"),
        5: Field("uid", "text"),
        6: Field("resourceVersion", "text"),
        7: Field("generation", "skip"),
        8: Field("creationTimestamp", "skip"),
        11: Field("labels", "text", is_map=True),
        12: Field("annotations", "text", is_map=True),
        13: Field("ownerReferences", _OWNER, repeated=True),
    }
)
_NO_STATUS = {3: Field("status", "skip")}
_METADATA = {1: Field("metadata", _OBJECT_META)}
_ROLE_REF = _message(apiGroup=(1, "text"), kind=(2, "text"), name=(3, "text"))
_SUBJECT = _message(kind=(1, "text"), apiGroup=(2, "text"), name=(3, "text"), namespace=(4, "text"))
_RULE: Message = MappingProxyType(
    {
        number: Field(name, "text", repeated=True)
        for number, name in enumerate(
            ("verbs", "apiGroups", "resources", "resourceNames", "nonResourceURLs"), start=1
        )
    }
)
_ROLE: Message = MappingProxyType({**_METADATA, 2: Field("rules", _RULE, repeated=True)})
_BINDING: Message = MappingProxyType(
    {**_METADATA, 2: Field("subjects", _SUBJECT, repeated=True), 3: Field("roleRef", _ROLE_REF)}
)
_RESOURCE_ATTRIBUTES = _message(
    namespace=(1, "text"),
    verb=(2, "text"),
    group=(3, "text"),
    version=(4, "text"),
    resource=(5, "text"),
    subresource=(6, "text"),
    name=(7, "text"),
)
_ACCESS = _message(
    resourceAttributes=(1, _RESOURCE_ATTRIBUTES),
    nonResourceAttributes=(2, _message(path=(1, "text"), verb=(2, "text"))),
)
_BOUND_OBJECT = _message(kind=(1, "text"), apiVersion=(2, "text"), name=(3, "text"), uid=(4, "text"))
_TOKEN_REQUEST: Message = MappingProxyType(
    {
        1: Field("audiences", "text", repeated=True),
        3: Field("boundObjectRef", _BOUND_OBJECT),
        4: Field("expirationSeconds", "number"),
    }
)
_REQUIREMENT = {**_message(key=(1, "text"), operator=(2, "text")), **_listed(values=(3, "text"))}
_SELECTOR = {**_mapped(matchLabels=(1, "text")), **_listed(matchExpressions=(2, _REQUIREMENT))}
_PORT = _message(
    name=(1, "text"),
    hostPort=(2, "count"),
    containerPort=(3, "number"),
    protocol=(4, "text"),
    hostIP=(5, "text"),
)
_CONTAINER: Message = {
    **_message(
        name=(1, "text"),
        image=(2, "text"),
        workingDir=(5, "text"),
        resources=(8, _mapped(limits=(1, "quantity"), requests=(2, "quantity"))),
        terminationMessagePath=(13, "text"),
        imagePullPolicy=(14, "text"),
        stdin=(16, "set"),
        stdinOnce=(17, "set"),
        tty=(18, "set"),
        terminationMessagePolicy=(20, "text"),
    ),
    **_listed(
        command=(3, "text"),
        args=(4, "text"),
        ports=(6, _PORT),
        env=(7, _message(name=(1, "text"), value=(2, "text"))),
    ),
}
_POD_SPEC: Message = {
    **_message(
        restartPolicy=(3, "text"),
        terminationGracePeriodSeconds=(4, "number"),
        activeDeadlineSeconds=(5, "number"),
        dnsPolicy=(6, "text"),
        serviceAccountName=(8, "text"),
        serviceAccount=(9, "text"),
        nodeName=(10, "text"),
        hostNetwork=(11, "set"),
        hostPID=(12, "set"),
        hostIPC=(13, "set"),
        securityContext=(14, {}),
        hostname=(16, "text"),
        subdomain=(17, "text"),
        schedulerName=(19, "text"),
        automountServiceAccountToken=(21, "flag"),
        priorityClassName=(24, "text"),
    ),
    **_listed(containers=(2, _CONTAINER)),
    **_mapped(nodeSelector=(7, "text")),
}
_TEMPLATE: Message = {**_METADATA, 2: Field("spec", _POD_SPEC)}
_ROLLING_UPDATE = _message(maxUnavailable=(1, "int-or-text"), maxSurge=(2, "int-or-text"))
_DEPLOYMENT = _message(
    replicas=(1, "number"),
    selector=(2, _SELECTOR),
    template=(3, _TEMPLATE),
    strategy=(4, _message(type=(1, "text"), rollingUpdate=(2, _ROLLING_UPDATE))),
    minReadySeconds=(5, "count"),
    revisionHistoryLimit=(6, "number"),
    paused=(7, "set"),
    progressDeadlineSeconds=(9, "number"),
)
_JOB = _message(
    parallelism=(1, "number"),
    completions=(2, "number"),
    activeDeadlineSeconds=(3, "number"),
    selector=(4, _SELECTOR),
    manualSelector=(5, "flag"),
    template=(6, _TEMPLATE),
    backoffLimit=(7, "number"),
    ttlSecondsAfterFinished=(8, "number"),
    completionMode=(9, "text"),
    suspend=(10, "flag"),
    podReplacementPolicy=(14, "text"),
)
_CRON_JOB = _message(
    schedule=(1, "text"),
    startingDeadlineSeconds=(2, "number"),
    concurrencyPolicy=(3, "text"),
    suspend=(4, "flag"),
    jobTemplate=(5, {**_METADATA, 2: Field("spec", _JOB)}),
    successfulJobsHistoryLimit=(6, "number"),
    failedJobsHistoryLimit=(7, "number"),
    timeZone=(8, "text"),
)
_SERVICE_PORT = _message(
    name=(1, "text"),
    protocol=(2, "text"),
    port=(3, "number"),
    targetPort=(4, "int-or-text"),
    nodePort=(5, "count"),
    appProtocol=(6, "text"),
)
_SERVICE: Message = {
    **_listed(ports=(1, _SERVICE_PORT)),
    **_mapped(selector=(2, "text")),
    **_message(
        clusterIP=(3, "text"),
        type=(4, "text"),
        sessionAffinity=(7, "text"),
        loadBalancerIP=(8, "text"),
        externalName=(10, "text"),
        externalTrafficPolicy=(11, "text"),
        healthCheckNodePort=(12, "count"),
        publishNotReadyAddresses=(13, "set"),
    ),
}
_BUDGET = _message(
    minAvailable=(1, "int-or-text"),
    selector=(2, _SELECTOR),
    maxUnavailable=(3, "int-or-text"),
    unhealthyPodEvictionPolicy=(4, "text"),
)
_QUOTA: Message = {**_mapped(hard=(1, "quantity")), **_listed(scopes=(2, "text"))}
MESSAGES: Mapping[str, Message] = MappingProxyType(
    {
        "ClusterRole": _ROLE,
        "ClusterRoleBinding": _BINDING,
        "ConfigMap": {
            **_METADATA,
            2: Field("data", "text", is_map=True),
            3: Field("binaryData", "bytes", is_map=True),
            4: Field("immutable", "flag"),
        },
        "CronJob": {**_METADATA, 2: Field("spec", _CRON_JOB), **_NO_STATUS},
        "Deployment": {**_METADATA, 2: Field("spec", _DEPLOYMENT), **_NO_STATUS},
        "Job": {**_METADATA, 2: Field("spec", _JOB), **_NO_STATUS},
        "Namespace": {
            **_METADATA,
            2: Field("spec", {1: Field("finalizers", "text", repeated=True)}),
            **_NO_STATUS,
        },
        "PodDisruptionBudget": {**_METADATA, 2: Field("spec", _BUDGET), **_NO_STATUS},
        "PriorityClass": {
            **_METADATA,
            **_message(
                value=(2, "number"),
                globalDefault=(3, "set"),
                description=(4, "text"),
                preemptionPolicy=(5, "text"),
            ),
        },
        "ResourceQuota": {**_METADATA, 2: Field("spec", _QUOTA), **_NO_STATUS},
        "Role": _ROLE,
        "RoleBinding": _BINDING,
        "Secret": {
            **_METADATA,
            2: Field("data", "bytes", is_map=True),
            3: Field("type", "text"),
            4: Field("stringData", "text", is_map=True),
            5: Field("immutable", "flag"),
        },
        "SelfSubjectAccessReview": {**_METADATA, 2: Field("spec", _ACCESS), **_NO_STATUS},
        "SelfSubjectReview": {**_METADATA, 2: Field("status", "skip")},
        "SelfSubjectRulesReview": {
            **_METADATA,
            2: Field("spec", _message(namespace=(1, "text"))),
            **_NO_STATUS,
        },
        "Service": {**_METADATA, 2: Field("spec", _SERVICE), **_NO_STATUS},
        "ServiceAccount": {**_METADATA, 4: Field("automountServiceAccountToken", "flag")},
        "TokenRequest": {**_METADATA, 2: Field("spec", _TOKEN_REQUEST), **_NO_STATUS},
    }
)
