import io
import json
import logging
from collections.abc import Iterator
from datetime import datetime

import pytest
import structlog

from kube_efs.model.errors import InvalidSetting
from kube_efs.telemetry.logging import configure, parse_level


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def _restored_logging() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    structlog.reset_defaults()


def lines_of(stream: io.StringIO) -> list[dict[str, object]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_a_line_is_one_json_object_with_time_level_logger_event_and_fields() -> None:
    stream = io.StringIO()
    configure("INFO", stream=stream)

    structlog.get_logger().info("volume-created", claim="default/example", file_systems=("fs-1", "fs-2"))

    (line,) = lines_of(stream)
    assert list(line)[:4] == ["timestamp", "level", "logger", "event"]
    assert datetime.fromisoformat(str(line.pop("timestamp"))).utcoffset() is not None
    assert line == {
        "level": "info",
        "logger": __name__,
        "event": "volume-created",
        "claim": "default/example",
        "file_systems": ["fs-1", "fs-2"],
    }


def test_libraries_go_through_the_same_chain() -> None:
    stream = io.StringIO()
    configure("INFO", stream=stream)

    logging.getLogger("some.library").info("got %s", "Bearer abcdefgh")

    [line] = lines_of(stream)
    assert (line["logger"], line["event"]) == ("some.library", "got Bearer [removed]")


def test_secrets_in_fields_and_tracebacks_are_removed() -> None:
    stream = io.StringIO()
    configure("INFO", stream=stream)

    try:
        raise ValueError("password=hunter2")
    except ValueError:
        structlog.get_logger().exception("failed", token="t0k3n")

    assert "hunter2" not in stream.getvalue()
    assert "t0k3n" not in stream.getvalue()
    assert "ValueError: password=[removed]" in str(lines_of(stream)[0]["exception"])


def test_a_terminal_gets_text_in_colours_and_without_them_when_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    coloured, plain = Terminal(), Terminal()
    monkeypatch.delenv("NO_COLOR", raising=False)
    configure("INFO", stream=coloured)
    structlog.get_logger().info("ready", port=20490)
    monkeypatch.setenv("NO_COLOR", "1")
    configure("INFO", stream=plain)
    structlog.get_logger().info("ready", port=20490)

    assert "\x1b[" in coloured.getvalue()
    assert "\x1b[" not in plain.getvalue()
    assert "port=20490" in plain.getvalue()


def test_levels_below_the_configured_one_and_noise_are_left_out() -> None:
    stream = io.StringIO()
    configure("debug", stream=stream)
    structlog.get_logger().debug("shown")
    for noisy in ("httpx", "httpx2", "botocore.endpoint", "aiohttp.access"):
        logging.getLogger(noisy).info("hidden")
    logging.getLogger("httpx2").warning("shown too")
    configure("WARNING", stream=stream)
    structlog.get_logger().info("hidden now")

    assert [line["event"] for line in lines_of(stream)] == ["shown", "shown too"]


def test_configuring_again_replaces_the_stream() -> None:
    first, second = io.StringIO(), io.StringIO()
    configure("INFO", stream=first)
    configure("INFO", stream=second)

    structlog.get_logger().info("once")

    assert first.getvalue() == ""
    assert len(lines_of(second)) == 1


@pytest.mark.parametrize("text", ["LOUD", "", "NOTSET", "20"])
def test_an_unknown_level_is_refused_with_the_choices(text: str) -> None:
    with pytest.raises(InvalidSetting, match="use one of DEBUG, INFO") as caught:
        parse_level(text)

    assert (caught.value.field, caught.value.value) == ("LOGGING_LEVEL", text)
