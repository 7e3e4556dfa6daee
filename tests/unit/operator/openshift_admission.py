"""OpenShift's admission of new pods by SecurityContextConstraints, as far as pods of kube-efs depend on it.

The rules are those of the package ``pkg/securitycontextconstraints`` of ``openshift/apiserver-library-go``,
which is a Go library. Not here: unsafe sysctls and drivers of FlexVolumes, which no pod of kube-efs has, and
the annotations for seccomp profiles, which are older than the fields.
"""

import copy
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

Manifest = Mapping[str, Any]

REQUIRED: Final = "openshift.io/required-scc"
# The volumes that give no access to storage.
_TRIVIAL: Final = frozenset({"secret", "configMap", "emptyDir", "downwardAPI", "projected", "none"})
_STRATEGY_POINTS: Final = {
    "RunAsAny": 40_000,
    "MustRunAsNonRoot": 30_000,
    "MustRunAsRange": 20_000,
    "MustRunAs": 10_000,
}
# The volume with the token of the account, which another admission plugin adds before this one.
_TOKEN: Final = "kube-api-access"
_TOKEN_SOURCES: Final = frozenset({"serviceAccountToken", "configMap", "downwardAPI"})
_SECCOMP_NAMES: Final = {"RuntimeDefault": "runtime/default", "Unconfined": "unconfined"}
_SECCOMP_TYPES: Final = {name: kind for kind, name in _SECCOMP_NAMES.items()}


class Refused(Exception):
    """No constraints admit the pod; ``reasons`` has those of each one, by its name."""

    def __init__(self, reasons: Mapping[str, Sequence[str]]) -> None:
        super().__init__(reasons)
        self.reasons = reasons


@dataclass(frozen=True, slots=True)
class Project:
    """The numbers that OpenShift has assigned to a namespace."""

    first_id: int = 1000680000
    ids: int = 10000
    level: str = "s0:c26,c10"

    @property
    def last_id(self) -> int:
        """The last user and group of the namespace."""
        return self.first_id + self.ids - 1


@dataclass(frozen=True, slots=True)
class Admitted:
    """The constraints that admitted a pod, and the pod with the values that they have set."""

    name: str
    pod: Manifest


def admit(
    template: Manifest,
    constraints: Iterable[Manifest],
    *,
    namespace: str,
    granted: Iterable[str] = (),
    project: Project | None = None,
) -> Admitted:
    """Admit a pod of this template; raises Refused.

    ``granted`` are the constraints that roles let the service account of the pod use; others name it
    themselves.
    """
    pod = _with_token(copy.deepcopy(dict(template)))
    account = f"system:serviceaccount:{namespace}:{pod['spec'].get('serviceAccountName') or 'default'}"
    groups = {"system:authenticated", "system:serviceaccounts", f"system:serviceaccounts:{namespace}"}
    required = (pod["metadata"].get("annotations") or {}).get(REQUIRED)
    reasons: dict[str, Sequence[str]] = {}
    for one in sorted(constraints, key=_rank):
        name = one["metadata"]["name"]
        if required not in {None, name}:
            continue
        is_named = account in (one.get("users") or ()) or groups & set(one.get("groups") or ())
        if not is_named and name not in set(granted):
            reasons[name] = ["not usable by the service account"]
            continue
        check = _Check(one, copy.deepcopy(pod), project or Project())
        check.run()
        if not check.errors:
            return Admitted(name, check.pod)
        reasons[name] = check.errors
    raise Refused(reasons)


def _with_token(pod: dict[str, Any]) -> dict[str, Any]:
    if pod["spec"].get("automountServiceAccountToken") is not False:
        sources: list[Manifest] = [{one: {}} for one in sorted(_TOKEN_SOURCES)]
        volume = {"name": _TOKEN, "projected": {"sources": sources}}
        pod["spec"]["volumes"] = [*(pod["spec"].get("volumes") or ()), volume]
    return pod


def _rank(constraints: Manifest) -> tuple[int, int, str]:
    """The order of the attempts: the highest priority, then the most restrictive, then the name."""
    return -(constraints.get("priority") or 0), points(constraints), constraints["metadata"]["name"]


def points(constraints: Manifest) -> int:
    """How much the constraints allow."""
    volumes = allowed_volumes(constraints)
    return (
        1_600_000 * bool(constraints.get("allowPrivilegedContainer"))
        + 800_000 * bool(constraints.get("allowHostPorts"))
        + 400_000 * bool(constraints.get("allowHostNetwork"))
        + (200_000 if volumes & {"hostPath", "*"} else 100_000 if volumes - _TRIVIAL else 0)
        + _STRATEGY_POINTS[constraints["seLinuxContext"]["type"]]
        + _STRATEGY_POINTS[constraints["runAsUser"]["type"]]
        + _capability_points(constraints)
    )


def _capability_points(constraints: Manifest) -> int:
    allowed = constraints.get("allowedCapabilities") or ()
    dropped = constraints.get("requiredDropCapabilities") or ()
    total = 5000 + 300 * len(constraints.get("defaultAddCapabilities") or ())
    total += 4000 if {"*", "ALL"} & {one.upper() for one in allowed} else 10 * len(allowed)
    total -= 3000 if "ALL" in {one.upper() for one in dropped} else 50 * len(dropped)
    return max(0, min(9999, total))


def allowed_volumes(constraints: Manifest) -> frozenset[str]:
    """The kinds of volumes; ``allowHostDirVolumePlugin`` takes precedence over the list."""
    listed = constraints.get("volumes")
    found = {"*"} if listed is None else set(listed) or {"none"}
    if constraints.get("allowHostDirVolumePlugin"):
        return frozenset(found if "*" in found else found | {"hostPath"})
    if "*" in found:
        raise NotImplementedError("all volumes except those of the host")
    return frozenset(found - {"hostPath"})


@dataclass(slots=True)
class _Check:
    """One attempt: sets what the pod does not state, then validates everything."""

    constraints: Manifest
    pod: dict[str, Any]
    project: Project
    errors: list[str] = field(default_factory=list)

    def run(self) -> None:
        spec = self.pod["spec"]
        context = spec.setdefault("securityContext", {})
        self._set_in_pod(context)
        self._check_host(spec)
        self._check_volumes(spec.get("volumes") or ())
        self._check_groups(context)
        self._check_seccomp(context.get("seccompProfile"), "pod")
        self._check_selinux(context.get("seLinuxOptions"), "pod")
        for container in _containers(spec):
            own = container.setdefault("securityContext", {})
            self._set_in_container(context, own)
            self._check_container(container["name"], {**context, **own}, own)
            self._check_ports(container, host_network=bool(spec.get("hostNetwork")))

    # --- what the pod does not state

    def _set_in_pod(self, context: dict[str, Any]) -> None:
        if self._strategy("seLinuxContext") == "MustRunAs":
            context.setdefault("seLinuxOptions", self._selinux())
        if self._strategy("fsGroup") == "MustRunAs":
            context.setdefault("fsGroup", self._fs_groups()[0][0])
        if self._strategy("supplementalGroups") == "MustRunAs":
            context.setdefault("supplementalGroups", [self._supplemental_groups()[0][0]])
        named = [one for one in self._profiles() if one != "*"]
        if named:
            context.setdefault("seccompProfile", {"type": _SECCOMP_TYPES[named[0]]})

    def _set_in_container(self, context: Manifest, own: dict[str, Any]) -> None:
        users = self.constraints["runAsUser"]
        if "runAsUser" not in context:
            match users["type"]:
                case "MustRunAsRange":
                    own.setdefault("runAsUser", self._users()[0])
                case "MustRunAs":
                    own.setdefault("runAsUser", users["uid"])
        self._set_capabilities(own)
        user = own.get("runAsUser", context.get("runAsUser"))
        must = users["type"] == "MustRunAsNonRoot" if user is None else user > 0
        if must and "runAsNonRoot" not in context:
            own.setdefault("runAsNonRoot", True)
        if self.constraints.get("readOnlyRootFilesystem"):
            own.setdefault("readOnlyRootFilesystem", True)
        is_powerful = own.get("privileged") or "CAP_SYS_ADMIN" in _added(own)
        default = self.constraints.get("defaultAllowPrivilegeEscalation")
        if default is not None and not is_powerful:
            own.setdefault("allowPrivilegeEscalation", default)
        if self.constraints.get("allowPrivilegeEscalation") is False:
            own.setdefault("allowPrivilegeEscalation", False)

    def _set_capabilities(self, own: dict[str, Any]) -> None:
        capabilities = own.get("capabilities") or {}
        drop, add = set(capabilities.get("drop") or ()), set(capabilities.get("add") or ())
        default = set(self.constraints.get("defaultAddCapabilities") or ())
        required = set(self.constraints.get("requiredDropCapabilities") or ())
        if default - drop - add or required - drop:
            own["capabilities"] = {"add": sorted(add | (default - drop)), "drop": sorted(drop | required)}

    # --- what the constraints allow

    def _check_host(self, spec: Manifest) -> None:
        for name in ("hostNetwork", "hostPID", "hostIPC"):
            if spec.get(name) and not self.constraints.get(f"allow{name[0].upper()}{name[1:]}"):
                self.errors.append(f"{name} is not allowed")

    def _check_volumes(self, volumes: Iterable[Manifest]) -> None:
        allowed = allowed_volumes(self.constraints)
        for volume in volumes:
            # A volume without a source is an emptyDir.
            kind = next((one for one in volume if one != "name"), "emptyDir")
            is_token = kind == "projected" and all(
                set(one) <= _TOKEN_SOURCES for one in volume["projected"]["sources"]
            )
            if not allowed & {kind, "*"} and not (is_token and "secret" in allowed):
                self.errors.append(f"volume {volume['name']}: {kind} is not allowed")

    def _check_groups(self, context: Manifest) -> None:
        stated = {"supplementalGroups": context.get("supplementalGroups") or []}
        stated["fsGroup"] = [context["fsGroup"]] if "fsGroup" in context else []
        ranges = {"supplementalGroups": self._supplemental_groups(), "fsGroup": self._fs_groups()}
        for name, groups in stated.items():
            if self._strategy(name) != "MustRunAs":
                continue
            if not groups:
                self.errors.append(f"{name} is required")
            for group in groups:
                if not any(first <= group <= last for first, last in ranges[name]):
                    self.errors.append(f"{name} {group} is not allowed")

    def _check_seccomp(self, profile: Manifest | None, where: str) -> None:
        allowed, kind = self._profiles(), (profile or {}).get("type")
        name = (
            _SECCOMP_NAMES.get(str(kind), f"localhost/{(profile or {}).get('localhostProfile')}")
            if kind
            else ""
        )
        if "*" in allowed or (not allowed and not name):
            return
        if name not in allowed:
            self.errors.append(f"{where}: seccomp profile {name!r} is not allowed")

    def _check_selinux(self, options: Manifest | None, where: str) -> None:
        if self._strategy("seLinuxContext") != "MustRunAs":
            return
        required = self._selinux()
        for name in ("level", "role", "type", "user"):
            if (options or {}).get(name, "") != required.get(name, ""):
                self.errors.append(f"{where}: seLinuxOptions.{name} must be {required.get(name, '')!r}")

    def _check_container(self, name: str, effective: Manifest, own: Manifest) -> None:
        constraints = self.constraints
        if own.get("privileged") and not constraints.get("allowPrivilegedContainer"):
            self.errors.append(f"{name}: privileged is not allowed")
        if constraints.get("readOnlyRootFilesystem") and not own.get("readOnlyRootFilesystem"):
            self.errors.append(f"{name}: readOnlyRootFilesystem is required")
        escalates = own.get("allowPrivilegeEscalation", True)
        if constraints.get("allowPrivilegeEscalation") is False and escalates:
            self.errors.append(f"{name}: allowPrivilegeEscalation is not allowed")
        # The API server refuses this combination, whatever the constraints are.
        if own.get("privileged") and not escalates:
            self.errors.append(f"{name}: privileged needs allowPrivilegeEscalation")
        self._check_user(name, effective)
        self._check_selinux(effective.get("seLinuxOptions"), name)
        self._check_capabilities(name, own)
        self._check_seccomp(effective.get("seccompProfile"), name)

    def _check_user(self, name: str, effective: Manifest) -> None:
        users, user = self.constraints["runAsUser"], effective.get("runAsUser")
        match users["type"]:
            case "MustRunAsRange":
                first, last = self._users()
                allowed = user is not None and first <= user <= last
            case "MustRunAs":
                allowed = user == users["uid"]
            case "MustRunAsNonRoot":
                allowed = bool(effective.get("runAsNonRoot")) if user is None else user != 0
            case _:
                allowed = True
        if not allowed:
            self.errors.append(f"{name}: runAsUser {user} is not allowed")

    def _check_capabilities(self, name: str, own: Manifest) -> None:
        allowed = set(self.constraints.get("allowedCapabilities") or ())
        default = set(self.constraints.get("defaultAddCapabilities") or ())
        if "*" in allowed:
            return
        for one in sorted(_added(own) - allowed - default):
            self.errors.append(f"{name}: capability {one} may not be added")
        dropped = set((own.get("capabilities") or {}).get("drop") or ())
        for one in sorted(set(self.constraints.get("requiredDropCapabilities") or ()) - dropped):
            self.errors.append(f"{name}: capability {one} must be dropped")

    def _check_ports(self, container: Manifest, *, host_network: bool) -> None:
        # On the network of the host, the API server sets hostPort for each port.
        ports = container.get("ports") or ()
        if not self.constraints.get("allowHostPorts") and any(
            host_network or one.get("hostPort") for one in ports
        ):
            self.errors.append(f"{container['name']}: host ports are not allowed")

    # --- the values of the constraints, or those of the namespace

    def _strategy(self, name: str) -> str:
        return str((self.constraints.get(name) or {}).get("type") or "RunAsAny")

    def _profiles(self) -> Sequence[str]:
        return self.constraints.get("seccompProfiles") or ()

    def _users(self) -> tuple[int, int]:
        users = self.constraints["runAsUser"]
        return users.get("uidRangeMin", self.project.first_id), users.get("uidRangeMax", self.project.last_id)

    def _selinux(self) -> dict[str, str]:
        stated = self.constraints["seLinuxContext"].get("seLinuxOptions") or {}
        return {"level": self.project.level, **stated}

    def _fs_groups(self) -> Sequence[tuple[int, int]]:
        # Of the namespace, only the first one.
        return self._ranges("fsGroup") or [(self.project.first_id, self.project.first_id)]

    def _supplemental_groups(self) -> Sequence[tuple[int, int]]:
        return self._ranges("supplementalGroups") or [(self.project.first_id, self.project.last_id)]

    def _ranges(self, name: str) -> Sequence[tuple[int, int]]:
        return [(one["min"], one["max"]) for one in (self.constraints.get(name) or {}).get("ranges") or ()]


def _containers(spec: Manifest) -> Iterator[dict[str, Any]]:
    for name in ("initContainers", "containers", "ephemeralContainers"):
        yield from spec.get(name) or ()


def _added(own: Manifest) -> set[str]:
    return set((own.get("capabilities") or {}).get("add") or ())
