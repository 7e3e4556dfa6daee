"""StatefulSets of ``apps/v1beta1``, which Kubernetes has not served since 1.16, but old manifests have.

They are the same objects as those of ``apps/v1``, but that the selector may be left out: it is then the
labels of the template (pkg/apis/apps/v1beta1/defaults.go).
"""

from dataclasses import replace

from tinykube.objects.json_types import Json, lookup
from tinykube.objects.resources import Form, ResourceType

_VERSION = "v1beta1"


def old_form(current: ResourceType) -> ResourceType:
    """The type of old, for the same objects as the current one."""
    form = Form(
        from_stored=lambda stored: {**stored, "apiVersion": f"{current.group}/{_VERSION}"},
        to_stored=lambda given: {**_completed(given), "apiVersion": current.api_version},
    )
    return replace(current, version=_VERSION, form=form)


def _completed(given: Json) -> Json:
    spec = given.get("spec") or {}
    labels = lookup(spec, "template", "metadata", "labels")
    selector = {"selector": {"matchLabels": labels}} if labels and not spec.get("selector") else {}
    return {**given, "spec": {**spec, **selector}}
