import pytest

from operator_plugin import Invalid


def resource(**spec):
    return {
        "apiVersion": "@GROUP@/@VERSION@",
        "kind": "@KIND@",
        "metadata": {"name": "my-@SINGULAR@", "namespace": "default"},
        "spec": spec,
    }


def test_it_runs_the_image_once_unless_the_resource_says_how_often(host):
    [deployment] = host.reconcile(resource(image="nginx")).children
    assert deployment["spec"]["replicas"] == 1
    assert deployment["spec"]["template"]["spec"]["containers"][0]["image"] == "nginx"


def test_a_resource_without_an_image_is_invalid(host):
    with pytest.raises(Invalid, match="missing field `image`"):
        host.reconcile(resource())
