"""What the server knows about each resource type, and the registry of all types it serves."""

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple, TypeAlias

from tinykube.objects.deletion import DeletionRules
from tinykube.objects.metadata import IMMUTABLE, NameRule, subdomain_problem
from tinykube.objects.statuses import Cause, Subject, unknown_resource
from tinykube.objects.values import Json, json_equal, lookup
from tinykube.patch.merge_rules import Rules, rules_for
from tinykube.printers import Printer

ALL_VERBS = ("create", "delete", "deletecollection", "get", "list", "patch", "update", "watch")
SUBRESOURCE_VERBS = {
    "status": ("get", "patch", "update"),
    "finalize": ("update",),
    "log": ("get",),
    "binding": ("create",),
    "eviction": ("create",),
    "exec": ("create", "get"),
    "scale": ("get", "patch"),
    "token": ("create",),
}
SUBRESOURCE_KINDS = {
    "eviction": ("policy", "v1", "Eviction"),
    "exec": ("", "v1", "PodExecOptions"),
    "scale": ("autoscaling", "v1", "Scale"),
    "token": ("authentication.k8s.io", "v1", "TokenRequest"),
}
"""Group, version and kind of the subresources that are no part of their object."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Strategy:
    """The rules of one kind. Functions take objects as immutable and give new ones.

    ``default`` fills in what a client left out. ``prepare_create`` and ``prepare_update`` (new, old) set what
    only the server sets. ``required`` and ``immutable`` are paths of fields that must be given, or stay as
    they are; ``other_problems`` (new, old or None) says what else is not acceptable.
    """

    name_rule: NameRule = subdomain_problem
    default: Callable[[Json], Json] = lambda given: given
    prepare_create: Callable[[Json], Json] = lambda new: new
    prepare_update: Callable[[Json, Json], Json] = lambda new, _: new
    required: tuple[str, ...] = ()
    immutable: tuple[str, ...] = ()
    other_problems: Callable[[Json, Json | None], Iterable[Cause]] = lambda _new, _old: ()
    deletion: DeletionRules = field(default_factory=DeletionRules)

    def problems(self, new: Json, old: Json | None) -> Iterator[Cause]:
        """What is not acceptable about a new object, or about an update of an old one."""
        for path in self.required:
            if not lookup(new, *path.split(".")):
                yield Cause(path, "is required")
        for path in self.immutable if old is not None else ():
            after, before = (lookup(one, *path.split(".")) for one in (new, old))
            if not json_equal(after or None, before or None):
                yield Cause(path, IMMUTABLE)
        yield from self.other_problems(new, old)


class GroupKind(NamedTuple):
    """A kind without its version; the core group is the empty string."""

    group: str
    kind: str


class GroupResource(NamedTuple):
    """A resource without its version: what objects are stored under."""

    group: str
    resource: str


Decoder: TypeAlias = Callable[[Json], tuple[Json, list[str]]]
"""Gives what a type knows of a body, and the paths of the fields that it does not know; raises 400."""


@dataclass(frozen=True, kw_only=True)
class ResourceType:
    """One version of a resource, and what is particular about it.

    Every way in which one resource behaves unlike another (may an update create it? does a deletion
    answer with the object?) is a field, after the registry strategies of kubernetes/kubernetes.
    """

    group: str
    version: str
    kind: str
    plural: str
    singular: str
    namespaced: bool = True
    short_names: tuple[str, ...] = ()
    verbs: tuple[str, ...] = ALL_VERBS
    has_status: bool = False
    other_subresources: tuple[str, ...] = ()
    unconditional_update: bool = True
    returns_deleted: bool = False
    counts_generations: bool = False
    custom: bool = False
    list_kind: str = ""
    printer: Printer | None = None
    decode: Decoder
    merge_rules: Rules | None = None
    strategy: Strategy = field(default_factory=Strategy)

    @property
    def api_version(self) -> str:
        """Such as ``v1`` or ``apps/v1``."""
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def group_kind(self) -> GroupKind:
        """The kind that rules are looked up by."""
        return GroupKind(self.group, self.kind)

    @cached_property
    def group_resource(self) -> GroupResource:
        """The resource without its version, under which the objects are kept."""
        return GroupResource(self.group, self.plural)

    @cached_property
    def rules(self) -> Rules:
        """How patches and server-side apply merge these objects."""
        return self.merge_rules or rules_for(self.group, self.kind)

    @cached_property
    def list_name(self) -> str:
        """The kind of a list of these."""
        return self.list_kind or f"{self.kind}List"

    @cached_property
    def type_prefix(self) -> bytes:
        """How the encoded form of each object begins; items of built-in lists go without it."""
        meta = {"kind": self.kind, "apiVersion": self.api_version}
        return json.dumps(meta, separators=(",", ":")).encode()[:-1] + b","

    def subject(self, name: str = "") -> Subject:
        """What refusals about this resource name."""
        return Subject(group=self.group, resource=self.plural, name=name)

    @cached_property
    def subresources(self) -> dict[str, tuple[str, ...]]:
        """The subresources and their verbs."""
        found = {name: SUBRESOURCE_VERBS[name] for name in self.other_subresources}
        return {**found, "status": SUBRESOURCE_VERBS["status"]} if self.has_status else found


class Registry:
    """All resource types that are served; custom ones come and go."""

    def __init__(self, types: Iterable[ResourceType]) -> None:
        self._types: dict[tuple[str, str, str], ResourceType] = {}
        self.replace((), types)

    def replace(self, old: Iterable[ResourceType], new: Iterable[ResourceType]) -> None:
        """Stop serving some types and serve others."""
        for resource in old:
            self._types.pop((resource.group, resource.version, resource.plural), None)
        for resource in new:
            self._types[resource.group, resource.version, resource.plural] = resource

    def find(self, group: str, version: str, plural: str) -> ResourceType | None:
        """The type of that name; None when it is not served."""
        return self._types.get((group, version, plural))

    def get(self, group: str, version: str, plural: str) -> ResourceType:
        """The type of that name; raises 404 when it is not served."""
        found = self.find(group, version, plural)
        if found is None:
            raise unknown_resource()
        return found

    def groups(self) -> dict[str, list[str]]:
        """The groups in order of registration, with their versions, the preferred one first: v1, v1beta1."""
        groups: dict[str, set[str]] = {}
        for resource in self._types.values():
            groups.setdefault(resource.group, set()).add(resource.version)
        return {group: sorted(versions) for group, versions in groups.items()}

    def in_version(self, group: str, version: str) -> list[ResourceType]:
        """The types of one group version, sorted by their plural names."""
        found = (kept for kept in self._types.values() if (kept.group, kept.version) == (group, version))
        return sorted(found, key=lambda resource: resource.plural)
