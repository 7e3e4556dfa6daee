"""The schemas that ``kubectl explain`` reads."""

import json

import pytest
from lab.tests.tinykube.apiserver.inside import Inside

from tinykube.api.openapi import document_v3, index_v3
from tinykube.api.openapi_schemas import schemas_of
from tinykube.objects.json_types import Json

_DEFINITION: Json = {
    "metadata": {"name": "widgets.example.com"},
    "spec": {
        "group": "example.com",
        "names": {"kind": "Widget", "plural": "widgets"},
        "scope": "Namespaced",
        "versions": [
            {
                "name": "v1",
                "served": True,
                "storage": True,
                "schema": {
                    "openAPIV3Schema": {
                        "type": "object",
                        "properties": {"spec": {"type": "object", "description": "What is wanted"}},
                    }
                },
            }
        ],
    },
}
_CORE = "io.k8s.api.core.v1"


@pytest.fixture
def schemas(inside: Inside) -> Json:
    return schemas_of(inside.registry.in_version("", "v1"))


def test_a_built_in_kind_is_found_by_its_name_and_described(schemas: Json) -> None:
    pod = schemas[f"{_CORE}.Pod"]
    assert pod["x-kubernetes-group-version-kind"] == [{"group": "", "version": "v1", "kind": "Pod"}]
    assert pod["description"].startswith("Pod is a collection of containers")
    assert pod["properties"]["spec"]["allOf"] == [{"$ref": f"#/components/schemas/{_CORE}.PodSpec"}]


def test_fields_have_types_and_descriptions(schemas: Json) -> None:
    container = schemas[f"{_CORE}.Container"]
    assert container["required"] == ["name"]
    arguments = container["properties"]["args"]
    assert (arguments["type"], arguments["items"]) == ("array", {"type": "string"})
    assert arguments["description"].startswith("Arguments to the entrypoint. The container image's CMD")
    assert container["properties"]["env"]["items"]["allOf"]
    labels = schemas["io.k8s.api.meta.v1.ObjectMeta"]["properties"]["labels"]
    assert labels["additionalProperties"] == {"type": "string"}


def test_every_reference_leads_somewhere_and_no_schema_is_empty(inside: Inside) -> None:
    for group, versions in inside.registry.groups().items():
        for version in versions:
            schemas = schemas_of(inside.registry.in_version(group, version))
            text = json.dumps(schemas)
            named = {part.split('"')[0] for part in text.split("#/components/schemas/")[1:]}
            assert named <= schemas.keys()
            assert '": {}' not in text.replace('"properties": {}', "")  # which kubectl cannot show


def test_a_custom_kind_has_its_own_words_and_the_fields_of_all(inside: Inside) -> None:
    inside.create("customresourcedefinitions", _DEFINITION)
    document = document_v3(inside.registry, "example.com", "v1")
    assert document is not None
    widget = document["components"]["schemas"]["example.com.v1.Widget"]
    assert widget["properties"].keys() == {"apiVersion", "kind", "metadata", "spec"}
    assert widget["properties"]["spec"]["description"] == "What is wanted"


def test_another_schema_has_another_address(inside: Inside) -> None:
    inside.create("customresourcedefinitions", _DEFINITION)
    before = index_v3(inside.registry)["paths"]["apis/example.com/v1"]
    definition = inside.get("customresourcedefinitions", "widgets.example.com")
    schema = definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    schema["properties"]["spec"]["description"] = "What is asked for"
    inside.update("customresourcedefinitions", definition)
    assert index_v3(inside.registry)["paths"]["apis/example.com/v1"] != before
