"""The environment and arguments of a container, by the rules of pkg/kubelet/kubelet_pods.go."""

import re
from collections.abc import Mapping
from types import MappingProxyType

from tinykube.errors import InvalidValue, NotYet
from tinykube.kubelet.images import Image, find_image
from tinykube.kubelet.pods import Container, EnvVar, KeyReference, Pod, Store

StoreContents = Mapping[tuple[Store, str], Mapping[str, bytes] | None]

STANDARD_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_REFERENCE = re.compile(r"\$(\$|\(([^)]*)\))")


def wanted_stores(container: Container) -> frozenset[tuple[Store, str]]:
    """The ConfigMaps and Secrets that the environment needs."""
    return frozenset((var.reference.store, var.reference.name) for var in container.env if var.reference)


def resolve_environment(
    container: Container,
    pod: Pod,
    stores: StoreContents,
    *,
    everywhere: Mapping[str, str] = MappingProxyType({}),
) -> dict[str, str]:
    """Every variable with its value; the container's own win over the rest.

    ``everywhere`` are those that every container of the node gets.

    Raises NotYet for a ConfigMap, Secret or key that is not there, InvalidValue for a field of the pod
    that no variable can have.
    """
    found = {"PATH": STANDARD_PATH, "HOME": "/root", "HOSTNAME": pod.name, **everywhere}
    for var in container.env:
        value = _value(var, pod, stores, found)
        if value is not None:
            found[var.name] = value
    return found


def resolve_command(
    container: Container, environment: Mapping[str, str], images: Mapping[str, Image]
) -> tuple[str, ...] | None:
    """The program and its arguments; ``images`` has what stands for images.

    None when nobody knows it: only the image would say, and images are not pulled here.
    """
    image = find_image(images, container.image)
    command = container.command or (image.command if image else ())
    if not command:
        return None
    return tuple(expand(word, environment) for word in (*command, *container.args))


def placeholder(image: str) -> tuple[tuple[str, ...], str]:
    """A program that stays until it is told to end, and what it says first: that it is only that."""
    text = f"image {image} is not pulled here; nothing runs in its place"
    return ("/bin/sh", "-c", 'echo "$0"; exec sleep infinity', text), text


def expand(text: str, values: Mapping[str, str]) -> str:
    """The text with each ``$(NAME)`` that has a value replaced by it, and ``$$`` by ``$``."""

    def replaced(match: re.Match[str]) -> str:
        if match[1] == "$":
            return "$"
        return values.get(match[2], match[0])

    return _REFERENCE.sub(replaced, text)


def _value(var: EnvVar, pod: Pod, stores: StoreContents, before: Mapping[str, str]) -> str | None:
    if var.reference is not None:
        key = _contents(var.reference, pod, stores).get(var.reference.key)
        if key is None and not var.reference.optional:
            kind, name = var.reference.store, var.reference.name
            raise NotYet(f"couldn't find key {var.reference.key} in {kind} {pod.namespace}/{name}")
        return None if key is None else key.decode(errors="surrogateescape")
    if var.field_path:
        return field_of(pod, var.field_path)
    return expand(var.value, before)


def field_of(pod: Pod, path: str) -> str:
    """A field of the pod by its path; raises InvalidValue for one that is not known here."""
    fields = {
        "metadata.name": pod.name,
        "metadata.namespace": pod.namespace,
        "metadata.uid": pod.uid,
        "spec.nodeName": pod.node,
        "spec.serviceAccountName": pod.service_account,
    }
    if path not in fields:
        raise InvalidValue("is not known to this kubelet", field="fieldPath", value=path)
    return fields[path]


def _contents(reference: KeyReference, pod: Pod, stores: StoreContents) -> Mapping[str, bytes]:
    contents = stores.get((reference.store, reference.name))
    if contents is None and not reference.optional:
        raise NotYet(f'{reference.store.lower()} "{reference.name}" not found', field=pod.namespace)
    return contents or {}
