"""Sessions of the client library: the descriptions of services need megabytes, and are read once."""

import gc
import weakref

from kube_efs.aws.session import new_session


def test_sessions_share_the_descriptions_of_services_while_one_of_them_exists() -> None:
    first, second = new_session(), new_session()
    loader = first.get_component("data_loader")
    assert second.get_component("data_loader") is loader
    released = weakref.ref(loader)
    del first, second, loader
    gc.collect()
    assert released() is None


def test_session_can_be_configured_before_its_configuration_is_read() -> None:
    session = new_session()
    session.set_config_variable("data_path", "/descriptions")
    assert "/descriptions" in session.get_component("data_loader").search_paths
