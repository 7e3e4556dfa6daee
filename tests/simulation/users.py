"""The users of a cluster and their pods: they create, retain, delete and recreate claims and volumes."""

import random
from collections.abc import Callable, Mapping

from tests.simulation.apiserver import ApiServer, Body, Refused
from tests.simulation.efs import REGION, Efs, Parts
from tests.simulation.history import History
from tests.simulation.invariants import BY_USERS, MEANS, Invariants, Record
from tests.simulation.replica import BUCKET, DIRECTORY_PROVISIONER, FIRST, NAMESPACE, SECOND
from tests.simulation.targets import published
from tests.simulation.themes import Theme
from tests.simulation.virtual import VirtualLoop

from kube_efs.model.efs.kinds import FileSystemKind
from kube_efs.model.tunnel_volumes import FILE_SYSTEM_ID, FILE_SYSTEM_LABEL

_NAMESPACES = ("red", "blue")
_CLAIMS = ("one", "two")
_DIRECTORIES = ("data", "logs")
_STATIC_MOST = 5
# Within this time, the source of a copy may be deleted.
_SOURCE_SECONDS = 20.0
_TUNNEL = "gnuthought.com/efs-stunnel"
_DRIVER = "efs.csi.aws.com"
_COMMON = {"directoryPerms": "700", "gidRangeStart": "50000", "gidRangeEnd": "50006"}
_BOTH = f"{FIRST},{SECOND}"
_SUBNETS = "subnet-0,subnet-1"

CLASSES: dict[str, tuple[str, dict[str, str]]] = {
    "tunnel": (_TUNNEL, {"default_file_system_id": FIRST, "file_system_ids": _BOTH}),
    "second": (_TUNNEL, {"default_file_system_id": SECOND}),
    "auto": (_TUNNEL, {"default_file_system_id": "auto"}),
    "group": (DIRECTORY_PROVISIONER, {"gidMin": "2000", "gidMax": "2006"}),
    "open": (DIRECTORY_PROVISIONER, {"gidAllocate": "false"}),
    "secure": (DIRECTORY_PROVISIONER, {"gidMin": "2003", "gidMax": "2009", "tls": "true"}),
    "point": (_DRIVER, {"provisioningMode": "efs-ap", "fileSystemId": FIRST, "basePath": "/ap"}),
    "points": (_DRIVER, {"provisioningMode": "efs-ap", "fileSystemIds": _BOTH, "basePath": "/ap"}),
    "reused": (
        _DRIVER,
        {"provisioningMode": "efs-ap", "fileSystemId": FIRST, "basePath": "/re", "reuseAccessPoint": "true"},
    ),
    "named": (
        _DRIVER,
        {
            "provisioningMode": "efs-ap",
            "fileSystemIds": _BOTH,
            "basePath": "/ap",
            "subPathPattern": "${.PVC.name}",
            "ensureUniqueDirectory": "false",
        },
    ),
    "plain": (_DRIVER, {"provisioningMode": "efs-dir", "fileSystemId": FIRST, "basePath": "/csi"}),
    "plain-second": (
        _DRIVER,
        {"provisioningMode": "efs-dir", "fileSystemId": SECOND, "basePath": "/csi", "uid": "0", "gid": "0"},
    ),
    "plain-named": (
        _DRIVER,
        {
            "provisioningMode": "efs-dir",
            "fileSystemId": FIRST,
            "basePath": "/csi",
            "subPathPattern": "${.PVC.name}",
            "ensureUniqueDirectory": "false",
        },
    ),
    "own": (_DRIVER, {"provisioningMode": "efs-fs", "subnetIds": _SUBNETS}),
    "own-shared": (_DRIVER, {"provisioningMode": "efs-fs", "subnetIds": _SUBNETS, "scope": "namespace"}),
    "bucket": (_DRIVER, {"provisioningMode": "s3files-ap", "fileSystemId": BUCKET, "basePath": "/ap"}),
    "bucket-named": (
        _DRIVER,
        {
            "provisioningMode": "s3files-ap",
            "fileSystemId": BUCKET,
            "basePath": "/ap",
            "subPathPattern": "${.PVC.name}",
            "ensureUniqueDirectory": "false",
        },
    ),
    # The directories of tunnel volumes, by another driver.
    "beside": (
        _DRIVER,
        {
            "provisioningMode": "efs-ap",
            "fileSystemIds": _BOTH,
            "basePath": "/red",
            "subPathPattern": "data",
            "ensureUniqueDirectory": "false",
        },
    ),
}
# Classes that exist only in some themes.
_OF_THEMES = frozenset({"plain-second", "own", "own-shared", "bucket", "bucket-named"})


def gid_range(provisioner: str, parameters: Mapping[str, str]) -> tuple[int, int]:
    """The first and the last ID of the class; 0 without a range."""
    given = {**_COMMON, **parameters} if provisioner == _DRIVER else parameters
    first, last = (
        given.get("gidMin") or given.get("gidRangeStart"),
        given.get("gidMax") or given.get("gidRangeEnd"),
    )
    return int(first or 0), int(last or 0)


class Users:
    """All users of the cluster, until ``leave``."""

    def __init__(
        self,
        loop: VirtualLoop,
        rng: random.Random,
        server: ApiServer,
        efs: Efs,
        invariants: Invariants,
        history: History,
        *,
        backends: frozenset[str],
        theme: Theme,
    ) -> None:
        self._loop = loop
        self._rng = rng
        self._server = server
        self._efs = efs
        self._invariants = invariants
        self._history = history
        self._made = 0
        self._gone = False
        kinds = {_TUNNEL: "tunnel", DIRECTORY_PROVISIONER: "directory", _DRIVER: "csi"}
        known = [
            name
            for name, (by, _) in CLASSES.items()
            if kinds[by] in backends and (name not in _OF_THEMES or name in theme.classes)
        ]
        self._classes = rng.sample(known, min(len(known), rng.choice((1, 2, 3, 5, 12))))
        self._classes = [one for one in theme.classes if one in known] or self._classes
        self._theme = theme
        for name in known:
            provisioner, parameters = CLASSES[name]
            given = {**parameters, **_COMMON} if provisioner == _DRIVER else parameters
            reclaim = "Delete"
            server.create(
                "storageclasses",
                {
                    "metadata": {"name": name},
                    "provisioner": provisioner,
                    "parameters": given,
                    "reclaimPolicy": reclaim,
                },
            )
        pace = rng.choice((0.5, 2.0, 5.0, 10.0))
        self._pace = theme.pace or pace
        actions: tuple[tuple[Callable[[], object], int], ...] = (
            (self._create_claim, 10),
            (self._delete_claim, 7),
            (self._delete_and_create_claim, 4),
            (self._set_policy, 3),
            (self._delete_volume, 1),
            (self._make_static, 4),
            (self._delete_static, 1),
            (self._create_copy, 0),
        )
        self._actions = [one for one, _ in actions]
        self._weights = [weight * rng.choice((0.2, 1, 1, 3)) for _, weight in actions]
        if theme.actions:
            # Copies only where a theme wants them: the sidecar of the simulation makes none.
            self._weights = [
                theme.actions.get(one.__name__.lstrip("_"), 0.2 if weight else 0.0) for one, weight in actions
            ]

    def begin(self) -> None:
        """Begin to use the cluster."""
        self._loop.after(self._rng.uniform(0.0, 10.0), self._act)
        self._loop.after(1.0, self._write)

    def leave(self) -> None:
        """Stop; pods continue to write."""
        self._gone = True

    def _act(self) -> None:
        if self._gone:
            return
        try:
            self._rng.choices(self._actions, self._weights)[0]()
        except Refused as refusal:
            self._history.note("people: refused: {}", refusal)
        self._loop.after(self._rng.expovariate(1 / self._pace), self._act)

    def _write(self) -> None:
        for record in list(self._invariants.live()):
            if record.body["status"]["phase"] == "Bound" or record.by_users:
                self._invariants.write(record)
        self._loop.after(self._rng.uniform(0.5, 3.0), self._write)

    # --- claims

    def _create_claim(self) -> None:
        namespaces = self._theme.namespaces or _NAMESPACES
        self._create(self._rng.choice(namespaces), self._rng.choice(_CLAIMS))

    def _create(self, namespace: str, name: str, storage_class: str | None = None) -> None:
        rng = self._rng
        storage_class = storage_class or rng.choice(self._classes)
        spec: Body = {
            "accessModes": ["ReadWriteMany"],
            "resources": {"requests": {"storage": "1Gi"}},
            "storageClassName": storage_class,
        }
        if CLASSES[storage_class][0] == _TUNNEL:
            labels = {"volume_name": rng.choice(self._theme.directories or _DIRECTORIES)}
            if rng.random() < 0.15:
                labels["reclaim_policy"] = rng.choice(("Retain", "Delete"))
            if rng.random() < 0.15:
                labels[FILE_SYSTEM_LABEL] = rng.choice((FIRST, SECOND))
            spec["selector"] = {"matchLabels": labels}
        body = {"metadata": {"namespace": namespace, "name": name}, "spec": spec}
        if self._server.find("persistentvolumeclaims", name, namespace) is None:
            made = self._server.create("persistentvolumeclaims", body)
            self._history.note(
                "people create claim {}/{} of class {} {} ({})",
                namespace,
                name,
                storage_class,
                spec.get("selector", ""),
                made["metadata"]["uid"],
            )

    def _create_copy(self) -> None:
        """Create a claim for a copy of one that exists, perhaps not for long."""
        claims = [one for one in self._claims() if "dataSource" not in one["spec"]]
        if not claims:
            return
        # Of one that is not bound, a copy rarely begins before the source is deleted.
        bound = [one for one in claims if one["status"]["phase"] == "Bound"]
        source = self._rng.choice(bound or claims)
        storage_class = self._rng.choice(self._classes)
        self._made += 1
        name = f"copy-{self._made}"
        spec: Body = {
            "accessModes": ["ReadWriteMany"],
            "resources": {"requests": {"storage": "1Gi"}},
            "storageClassName": storage_class,
            "dataSource": {"kind": "PersistentVolumeClaim", "name": source["metadata"]["name"]},
        }
        if CLASSES[storage_class][0] == _TUNNEL:
            spec["selector"] = {"matchLabels": {"volume_name": name}}
        namespace = source["metadata"]["namespace"]
        body = {"metadata": {"namespace": namespace, "name": name}, "spec": spec}
        made = self._server.create("persistentvolumeclaims", body)
        self._history.note(
            "people create claim {}/{} of class {} as a copy of {} ({})",
            namespace,
            name,
            storage_class,
            source["metadata"]["name"],
            made["metadata"]["uid"],
        )
        if self._rng.random() < 0.5:
            self._loop.after(self._rng.uniform(1.0, _SOURCE_SECONDS), self._delete_source, source["metadata"])

    def _delete_source(self, meta: Body) -> None:
        """Delete the source of a copy, most likely while it is copied."""
        found = self._server.find("persistentvolumeclaims", meta["name"], meta["namespace"])
        if self._gone or found is None or found["metadata"]["uid"] != meta["uid"]:
            return
        self._history.note("people delete claim {}/{}, a source", meta["namespace"], meta["name"])
        self._server.delete("persistentvolumeclaims", meta["name"], meta["namespace"])

    def _claims(self) -> list[Body]:
        found = self._server.all("persistentvolumeclaims")
        return [
            one
            for one in found
            if one["metadata"]["namespace"] in _NAMESPACES and "deletionTimestamp" not in one["metadata"]
        ]

    def _delete_claim(self) -> Body | None:
        claims = self._claims()
        if not claims:
            return None
        claim = self._rng.choice(claims)
        meta = claim["metadata"]
        self._history.note("people delete claim {}/{}", meta["namespace"], meta["name"])
        self._server.delete("persistentvolumeclaims", meta["name"], meta["namespace"])
        return claim

    def _delete_and_create_claim(self) -> None:
        claim = self._delete_claim()
        if claim is None:
            return
        meta, spec = claim["metadata"], claim["spec"]
        fresh = {
            "metadata": {"namespace": meta["namespace"], "name": meta["name"]},
            "spec": {key: value for key, value in spec.items() if key != "volumeName"},
        }

        def again() -> None:
            if not self._gone and not self._server.find(
                "persistentvolumeclaims", meta["name"], meta["namespace"]
            ):
                made = self._server.create("persistentvolumeclaims", fresh)
                self._history.note(
                    "people create claim {}/{} again ({})",
                    meta["namespace"],
                    meta["name"],
                    made["metadata"]["uid"],
                )

        self._loop.after(self._rng.choice((1.0, 5.0, 15.0, 40.0)), again)

    # --- volumes

    def _volumes(self, *, by_users: bool | None = None) -> list[Record]:
        return [one for one in self._invariants.live() if by_users is None or one.by_users == by_users]

    def _set_policy(self) -> None:
        volumes = self._volumes(by_users=False)
        leaving = [one for one in volumes if one.is_to_go]
        volumes = leaving if leaving and self._rng.random() < 0.7 else volumes
        if volumes:
            record = self._rng.choice(volumes)
            before = record.body["spec"]["persistentVolumeReclaimPolicy"]
            self._set(record, "Retain" if before == "Delete" else "Delete")

    def keep(self, record: Record) -> None:
        """Set the volume to Retain, if it exists."""
        if not record.is_gone:
            self._set(record, "Retain")

    def _set(self, record: Record, policy: str) -> None:
        self._history.note("people set {} to {}", record.name, policy)
        self._server.update(
            "persistentvolumes",
            record.name,
            lambda body: body["spec"].update(persistentVolumeReclaimPolicy=policy),
        )

    def annotate_unknown(self) -> None:
        """Annotate the volumes of unknown ports with their file systems, as the controller requests."""
        ports = published(self._server, NAMESPACE)
        for record in self._volumes(by_users=True):
            if record.port is None or record.port in ports or record.place is None:
                continue
            self._annotate(record, record.place[0])

    def _annotate(self, record: Record, file_system_id: str) -> None:
        self._history.note("people annotate {} with {}", record.name, file_system_id)
        self._server.update(
            "persistentvolumes",
            record.name,
            lambda body: body["metadata"]["annotations"].update({FILE_SYSTEM_ID: file_system_id}),
        )

    def _delete_volume(self) -> None:
        volumes = self._volumes(by_users=False)
        if volumes:
            record = self._rng.choice(volumes)
            self._history.note("people delete volume {}", record.name)
            self._server.delete("persistentvolumes", record.name)

    def _delete_static(self) -> None:
        volumes = self._volumes(by_users=True)
        if volumes:
            record = self._rng.choice(volumes)
            self._history.note("people delete volume {}", record.name)
            self._server.delete("persistentvolumes", record.name)

    def _make_static(self) -> None:
        """A static volume, usually with a directory near one of kube-efs."""
        rng = self._rng
        if len(self._volumes(by_users=True)) >= _STATIC_MOST:
            self._delete_static()
            return
        records = [one for one in self._invariants.records.values() if not one.by_users]
        leaving = [one for one in records if one.is_to_go and not one.is_gone]
        records = leaving if leaving and rng.random() < 0.7 else records
        if not records:
            return
        record = rng.choice(records)
        place = record.root or record.place
        if place is None:
            return
        file_system_id, parts = place
        where = rng.choice(self._theme.places or ("same", "same", "below", "above", "root"))
        if where == "below":
            parts = (*parts, "sub")
        elif where == "above":
            parts = parts[:-1]
        elif where == "root":
            parts = ()
        source = self._source(record, file_system_id, parts)
        if source is None:
            return
        self._made += 1
        name = f"static-{self._made}"
        spec, annotations = source
        spec |= {
            "capacity": {"storage": "1Gi"},
            "accessModes": ["ReadWriteMany"],
            "persistentVolumeReclaimPolicy": rng.choice(("Retain", "Retain", "Delete")),
            "storageClassName": "",
        }
        self._history.note("people make volume {} {} {}", name, spec.get("nfs") or spec.get("csi"), where)
        self._server.create(
            "persistentvolumes",
            {"metadata": {"name": name, "annotations": {BY_USERS: "yes", **annotations}}, "spec": spec},
        )
        made = next(one for one in self._invariants.live() if one.name == name)
        folder = self._invariants.located(made)
        if folder is not None:
            self._efs.file_systems[folder[0]].make(folder[1])
            self._invariants.write(made)

    def _source(
        self, record: Record, file_system_id: str, parts: Parts
    ) -> tuple[Body, dict[str, str]] | None:
        """The source of a static volume, in one of many spellings; None when that is not possible."""
        rng, path = self._rng, "/" + "/".join(parts)
        all_sources = ("dns", "address", "loopback", "annotated", "alias", "csi", "point", "same point")
        how = rng.choice(self._theme.sources or all_sources)
        if how in {"point", "same point", "csi"}:
            handle = self._handle(how, record, file_system_id, parts)
            return _csi(handle, in_options=rng.random() < 0.3), {}
        if how == "dns":
            return _nfs(f"{file_system_id}.efs.{REGION}.amazonaws.com", path), {}
        if how == "alias":
            return _nfs("files.example.com", path), {FILE_SYSTEM_ID: file_system_id}
        port = self._port(file_system_id)
        if port is None:
            return None
        annotations = {MEANS: file_system_id}
        if how == "address":
            return _nfs(self._efs.file_systems[file_system_id].address, path), annotations
        if how == "annotated":
            annotations[FILE_SYSTEM_ID] = file_system_id
        return {**_nfs("127.0.0.1", path), "mountOptions": [f"port={port}"]}, annotations

    def _handle(self, how: str, record: Record, file_system_id: str, parts: Parts) -> str:
        rng, path = self._rng, "/" + "/".join(parts)
        on = self._efs.file_systems[file_system_id]
        name = f"{on.kind}:{file_system_id}" if on.kind is FileSystemKind.S3_FILES else file_system_id
        if how == "same point" and record.access_point_id in self._efs.access_points:
            sub = "/sub" if rng.random() < 0.3 else ""
            return f"{name}:{sub}:{record.access_point_id}"
        if how == "csi" or not parts:
            return f"{name}:{path}"
        made = self._efs.add_access_point(
            "",
            self._loop.time(),
            ClientToken=f"people-{len(self._efs.access_points)}-{rng.getrandbits(32):x}",
            FileSystemId=file_system_id,
            RootDirectory={"Path": path},
            Tags=[],
        )
        return f"{name}::{made['AccessPointId']}"

    def _port(self, file_system_id: str) -> int | None:
        ports = published(self._server, NAMESPACE)
        return next((port for port, owner in ports.items() if owner == file_system_id), None)


def _nfs(server: str, path: str) -> Body:
    return {"nfs": {"server": server, "path": path}}


def _csi(handle: str, *, in_options: bool) -> Body:
    """A volume of the CSI driver; if ``in_options``, its mount options have the access point."""
    rest, _, point = handle.rpartition(":")
    if in_options and point.startswith("fsap-"):
        options = ["tls", f"accesspoint={point}"]
        return {"csi": {"driver": _DRIVER, "volumeHandle": rest.rstrip(":")}, "mountOptions": options}
    return {"csi": {"driver": _DRIVER, "volumeHandle": handle}}
