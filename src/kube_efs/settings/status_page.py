"""The controller's settings for its status page."""

from dataclasses import dataclass

from kube_efs.settings.base import Environment
from kube_efs.settings.fields import count, setting, switch


@dataclass(frozen=True, kw_only=True)
class StatusPageSettings(Environment):
    """A page that shows what ``kube-efs status`` shows, without authentication."""

    status_page: bool = switch(
        "KUBE_EFS_STATUS_PAGE",
        False,
        "Whether to serve the status page, which has no authentication.",
    )
    status_page_host: str = setting(
        "KUBE_EFS_STATUS_PAGE_HOST",
        "127.0.0.1",
        "Address of the page.",
        read=str,
        accepts="an address of this host",
    )
    status_page_port: int = count(
        "KUBE_EFS_STATUS_PAGE_PORT",
        9814,
        "Port of the page; 0 selects a free one.",
        least=0,
        most=65535,
    )
