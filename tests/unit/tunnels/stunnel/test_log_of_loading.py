"""Whether stunnel accepted its configuration; the texts are those of stunnel 5.68."""

import pytest

from kube_efs.tunnels.stunnel.log import Loaded, LoadMonitor, Outcome, Unbindable, Unloadable, parse_line

CONFIGURATION = """\
foreground = yes
[fs-1]
client = yes
[fs-2]
bogus = 1
"""

TAKEN = """\
2026.11.21 08:03:29 LOG5[ui]: Reading configuration from file /tmp/t.conf
2026.11.21 08:03:29 LOG5[ui]: Configuration successful
2026.11.21 08:03:29 LOG6[ui]: Service [fs-1] (FD=8) bound to 127.0.0.1:29901
2026.11.21 08:03:29 LOG6[ui]: Service [fs-2] (FD=9) bound to 127.0.0.1:29902
"""
BAD_LINE = """\
2026.11.21 08:03:29 LOG5[ui]: Reading configuration from file /tmp/t.conf
2026.11.21 08:03:29 LOG3[ui]: /tmp/t.conf:5: "bogus = 1": Specified option name is not valid here
2026.11.21 08:03:29 LOG3[ui]: Configuration failed
2026.11.21 08:03:29 LOG3[ui]: Failed to reload the configuration file
"""
BAD_SERVICE = """\
[.] Reading configuration from file /tmp/t.conf
[!] No trusted certificates found
[!] Service [fs-1]: Failed to initialize TLS context
[!] Configuration failed
"""
BAD_GLOBAL = """\
[.] Reading configuration from file /tmp/t.conf
[!] /tmp/t.conf:1: "foreground = perhaps": The argument needs to be one of 'yes', 'quiet', or 'no'
[!] Configuration failed
"""
PORT_TAKEN = """\
2026.11.21 08:03:29 LOG5[ui]: Reading configuration from file /tmp/t.conf
2026.11.21 08:03:29 LOG5[ui]: Configuration successful
2026.11.21 08:03:29 LOG6[ui]: Service [fs-1] (FD=8) bound to 127.0.0.1:29901
2026.11.21 08:03:29 LOG5[ui]: Binding service [fs-2] to 127.0.0.1:29905: Address already in use (98)
2026.11.21 08:03:29 LOG3[ui]: Binding service [fs-2] failed
"""


def monitor(text: str) -> LoadMonitor:
    monitor = LoadMonitor(CONFIGURATION, {"fs-1", "fs-2"})
    monitor.read(line for line in map(parse_line, text.splitlines()) if line)
    return monitor


@pytest.mark.parametrize(
    ("text", "outcome"),
    [
        pytest.param(TAKEN, Loaded(), id="all ports bound"),
        pytest.param(TAKEN + BAD_LINE, Loaded(), id="later lines belong to the next load"),
        pytest.param(
            BAD_LINE,
            Unloadable(
                reason='/tmp/t.conf:5: "bogus = 1": Specified option name is not valid here', culprit="fs-2"
            ),
            id="invalid line names its section",
        ),
        pytest.param(
            BAD_SERVICE,
            Unloadable(
                reason="No trusted certificates found; Service [fs-1]: Failed to initialize TLS context",
                culprit="fs-1",
            ),
            id="service that cannot be started",
        ),
        pytest.param(
            BAD_GLOBAL,
            Unloadable(
                reason='/tmp/t.conf:1: "foreground = perhaps": The argument needs to be one of'
                " 'yes', 'quiet', or 'no'"
            ),
            id="refusal without a section",
        ),
        pytest.param(PORT_TAKEN, Unbindable(culprit="fs-2"), id="port in use"),
        pytest.param("\n".join(TAKEN.splitlines()[:3]), None, id="not all ports bound yet"),
        pytest.param("\n".join(BAD_LINE.splitlines()[:2]), None, id="not finished yet"),
        pytest.param("", None, id="no lines yet"),
        pytest.param(
            "\n".join(TAKEN.splitlines()[2:3] + TAKEN.splitlines()[:3]),
            None,
            id="ports of the previous configuration do not count",
        ),
    ],
)
def test_log_contains_the_outcome(text: str, outcome: Outcome | None) -> None:
    assert monitor(text).outcome == outcome


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        pytest.param("[!] Out of memory", "Out of memory", id="with a last message"),
        pytest.param("", "stunnel ended without a message", id="without a message"),
    ],
)
def test_end_without_a_message_counts_as_refused(text: str, reason: str) -> None:
    assert monitor(text).ended() == Unloadable(reason=reason)
