import io
import json
import logging
import re
from collections.abc import Iterator
from datetime import datetime

import pytest
import structlog
from tests.unit.logged import logged

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


def test_line_is_one_json_object_with_time_level_logger_event_and_fields() -> None:
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


def test_log_lines_of_libraries_use_the_same_chain() -> None:
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


def test_terminal_gets_text_with_or_without_colors(monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_levels_below_the_configured_one_and_noise_are_omitted() -> None:
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
def test_unknown_level_is_refused_with_the_choices(text: str) -> None:
    with pytest.raises(InvalidSetting, match="use one of DEBUG, INFO") as caught:
        parse_level(text)

    assert (caught.value.field, caught.value.value) == ("LOGGING_LEVEL", text)


SECRET = "IQoJb3JpZ2luX2VjEJr" + "aB3dE5gH7j" * 70
_HUGE = 1_000_000


def _raise_huge() -> None:
    try:
        raise KeyError("x" * _HUGE)
    except KeyError as error:
        raise ValueError("a" * _HUGE + f"DB_PASS={SECRET}" + "b" * _HUGE) from error


@pytest.mark.parametrize(
    "field",
    [
        pytest.param("x" * _HUGE, id="text"),
        pytest.param(b"x" * _HUGE, id="bytes"),
        pytest.param(["y" * 1000] * 10_000, id="list"),
        pytest.param([[[["y" * 90] * 30] * 30] * 30], id="lists of lists"),
        pytest.param({f"key {number}": "y" * 1000 for number in range(10_000)}, id="mapping"),
        pytest.param({"z" * _HUGE: 1}, id="key"),
        pytest.param(json.dumps({"token": ["x" * _HUGE]}), id="json"),
        pytest.param("\x00" * _HUGE, id="text that JSON escapes"),
    ],
)
def test_line_length_is_bounded_for_any_input(field: object) -> None:
    with logged() as stream:
        structlog.get_logger().info("request", first=field, second=field, port=20490)
        logging.getLogger("library").info("got %s", field if isinstance(field, str) else "x" * _HUGE)

    lines = lines_of(stream)
    assert [line["level"] for line in lines] == ["info", "info"]
    assert all(len(line) < 80_000 for line in stream.getvalue().splitlines())
    assert lines[0]["event"] == "request"
    assert re.search(r"characters\)|more entries\)|1000000 bytes|\[removed\]", str(lines[0]))


def test_traceback_is_bounded_and_keeps_its_frames() -> None:
    with logged() as stream:
        try:
            _raise_huge()
        except ValueError:
            structlog.get_logger().exception("failed")

    (line,) = lines_of(stream)
    text = str(line["exception"])
    assert len(text) < 20_000
    assert text.count("in _raise_huge") == 2
    assert "KeyError: " in text
    assert "ValueError: " in text
    assert text.count("characters)") == 2
    assert "aB3dE5gH" not in text


def test_groups_of_groups_of_exceptions_are_bounded() -> None:
    error: Exception = ValueError(f"token: {SECRET}")
    for _ in range(8):
        error = ExceptionGroup("several", [error, error, error])
    with logged() as stream:
        structlog.get_logger().error("failed", exc_info=error)

    (line,) = lines_of(stream)
    assert len(str(line["exception"])) < 20_000
    assert "ExceptionGroup: several" in str(line["exception"])
    assert "aB3dE5gH" not in stream.getvalue()


def test_values_of_variables_with_secret_names_are_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DB_PASS", "hunter22")
    monkeypatch.setenv("KUBE_EFS_TOKEN_FILE", "/var/run/token")
    with logged() as stream:
        structlog.get_logger().info("tried", reason="login with hunter22 failed, see /var/run/token")

    assert lines_of(stream)[0]["reason"] == "login with [removed] failed, see /var/run/token"


def test_line_that_cannot_be_formatted_is_dropped_without_its_arguments(
    capfd: pytest.CaptureFixture[str],
) -> None:
    with logged() as stream:
        handler = logging.getLogger().handlers[-1]
        handler.handle(logging.LogRecord("library", logging.INFO, "a.py", 7, "%d", (SECRET,), None))

    (line,) = lines_of(stream)
    assert line == {
        "level": "error",
        "logger": "library",
        "event": "line-lost",
        "place": "a.py:7",
        "reason": "TypeError",
    }
    assert capfd.readouterr() == ("", "")
