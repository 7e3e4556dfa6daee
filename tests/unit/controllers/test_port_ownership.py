"""No volume ever uses the data of another file system, in any order of changes and answers.

File systems, volumes, a ConfigMap and an unreliable AWS are fakes. The deciding parts are real: the
catalog, the index, the rules for ports, and the documents in the ConfigMap.
"""

import asyncio
from dataclasses import dataclass, field
from datetime import UTC, datetime

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from kube_efs.aws.catalogue import Catalogue
from kube_efs.model.efs.file_systems import FileSystem, LifeCycleState, MountTarget
from kube_efs.model.efs.ids import FileSystemId, MountTargetId, SubnetId
from kube_efs.model.efs.targets import (
    TunnelTargets,
    follow_discovery,
    parse_targets,
    render_reserved,
    render_targets,
    render_zones,
)
from kube_efs.model.errors import AwsNotFound, AwsUnavailable
from kube_efs.model.tunnel_volumes import ROOT_CLASS, root_name
from kube_efs.model.volumes import NfsSource, Volume
from kube_efs.provisioning.volume_index import VolumeIndex

NAMES = [FileSystemId(f"fs-{number}") for number in range(3)]
NOW = datetime(2026, 11, 22, tzinfo=UTC)
_SOME = st.frozensets(st.sampled_from(NAMES))


@dataclass
class Aws:
    """The existing file systems, and the answer to the next poll."""

    there: set[FileSystemId] = field(default_factory=set)
    hidden: frozenset[FileSystemId] = frozenset()
    without_targets: frozenset[FileSystemId] = frozenset()
    failing: frozenset[FileSystemId] = frozenset()

    async def file_systems(self) -> tuple[FileSystem, ...]:
        return tuple(FileSystem(file_system_id=fs) for fs in sorted(self.there - self.hidden))

    async def mount_targets(self, file_system_id: FileSystemId) -> tuple[MountTarget, ...]:
        if file_system_id in self.failing:
            raise AwsUnavailable("was not answered")
        if file_system_id not in self.there:
            raise AwsNotFound("answered FileSystemNotFound")
        if file_system_id in self.without_targets:
            return ()
        target = MountTarget(
            mount_target_id=MountTargetId(f"fsmt-{file_system_id}"),
            file_system_id=file_system_id,
            subnet_id=SubnetId("subnet-a"),
            zone=None,
            address="10.0.0.4",
            state=LifeCycleState.AVAILABLE,
        )
        return (target,)


class Cluster(RuleBasedStateMachine):
    """The cluster and its controller."""

    def __init__(self) -> None:
        super().__init__()
        self.aws = Aws()
        self.volumes: dict[str, Volume] = {}
        self.owners: dict[str, FileSystemId] = {}
        self.config_map: tuple[str, str, str] | None = None
        self.made = 0
        self._start_controller()

    def _start_controller(self) -> None:
        self.index = VolumeIndex()
        if self.config_map is not None:
            self.index.targets, rejections = parse_targets(*self.config_map)
            assert not rejections
        self.index.replace_volumes(self.volumes.values())
        self.catalogue = Catalogue(self.aws, 300)
        self.catalogue.expected = lambda: (
            self.index.targets.targets.keys()
            | {fs for use in self.index.ports_in_use().values() if use.root for fs in use.owners}
        )

    @rule(there=_SOME)
    def file_systems_come_and_go(self, there: frozenset[FileSystemId]) -> None:
        # AWS never reuses an ID. Here it can return, as after two wrong answers of AWS.
        self.aws.there = set(there)
        self._poll()

    @rule(hidden=_SOME | st.just(frozenset(NAMES)), without=_SOME, failing=_SOME)
    def poll(
        self,
        hidden: frozenset[FileSystemId],
        without: frozenset[FileSystemId],
        failing: frozenset[FileSystemId],
    ) -> None:
        self.aws.hidden, self.aws.without_targets, self.aws.failing = hidden, without, failing
        self._poll()
        self.aws.hidden = self.aws.without_targets = self.aws.failing = frozenset()

    def _poll(self) -> None:
        before = self.index.targets
        discovery = asyncio.run(self.catalogue.refresh())
        found = follow_discovery(before, discovery, base_port=20490, ports_in_use=self.index.ports_in_use())
        # One incomplete answer neither removes an existing target nor changes its port.
        for fs in self.aws.there & before.targets.keys():
            assert found.port_of(fs) == before.port_of(fs)
        self._publish(found)
        self._follow_roots(found, discovery.unclear)

    def _publish(self, targets: TunnelTargets) -> None:
        self.config_map = (
            render_targets(targets, last_update=NOW),
            render_zones(targets),
            render_reserved(targets),
        )
        self.index.targets = targets

    def _follow_roots(self, targets: TunnelTargets, unclear: frozenset[FileSystemId]) -> None:
        for fs, target in targets.targets.items():
            self._put(root_name(fs), fs, target.port, annotated=True, storage_class=ROOT_CLASS)
        for fs in NAMES:
            if fs not in targets.targets and fs not in unclear:
                self._drop(root_name(fs))

    def _put(
        self, name: str, fs: FileSystemId, port: int, *, annotated: bool, storage_class: str = ""
    ) -> None:
        self.volumes[name] = Volume(
            name=name,
            uid=name,
            storage_class=storage_class,
            file_system_id=fs if annotated else None,
            nfs=NfsSource(server="127.0.0.1" if annotated else "localhost", path="/team/data"),
            mount_options=(f"port={port}",),
        )
        self.owners[name] = fs
        self.index.put_volume(self.volumes[name])

    def _drop(self, name: str) -> None:
        if name in self.volumes:
            self.index.drop_volume(self.volumes.pop(name))
            del self.owners[name]

    @precondition(lambda self: self.index.targets.targets)
    @rule(data=st.data(), annotated=st.booleans())
    def make_volume(self, data: st.DataObject, annotated: bool) -> None:
        fs = data.draw(st.sampled_from(sorted(self.index.targets.targets)))
        self.made += 1
        self._put(f"pv-{self.made}", fs, self.index.targets.targets[fs].port, annotated=annotated)

    @precondition(lambda self: self.volumes)
    @rule(data=st.data())
    def remove_volume(self, data: st.DataObject) -> None:
        self._drop(data.draw(st.sampled_from(sorted(self.volumes))))

    @rule(without_config_map=st.booleans())
    def restart(self, without_config_map: bool) -> None:
        if without_config_map:
            self.config_map = None
        self._start_controller()

    @invariant()
    def nobody_reaches_the_data_of_others(self) -> None:
        targets = self.index.targets.targets
        at = {target.port: fs for fs, target in targets.items()}
        assert len(at) == len(targets)
        for name, volume in self.volumes.items():
            (port,) = volume.loopback_ports
            assert at.get(port, self.owners[name]) == self.owners[name], name
            if volume.annotated is not None and volume.annotated in targets:
                assert targets[volume.annotated].port == port, name


TestPortOwnership = Cluster.TestCase
TestPortOwnership.settings = settings(
    max_examples=2 * settings().max_examples, stateful_step_count=20, deadline=None
)
