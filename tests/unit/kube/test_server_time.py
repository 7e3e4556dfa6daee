from datetime import UTC, datetime

import httpx2
import pytest

from kube_efs.kube.server_time import ServerTime, TimeReadingTransport


@pytest.mark.parametrize(
    ("dates", "first"),
    [
        pytest.param(
            ["Fri, 02 Jan 2026 03:04:05 GMT", "Fri, 02 Jan 2026 03:04:09 GMT"],
            datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC),
            id="the first of two",
        ),
        pytest.param(
            [None, "Fri, 02 Jan 2026 03:04:09 GMT"],
            datetime(2026, 1, 2, 3, 4, 9, tzinfo=UTC),
            id="an answer without a time",
        ),
        pytest.param([None], None, id="no time"),
        pytest.param(["yesterday"], None, id="not a time"),
        pytest.param(["Fri, 02 Jan 2026 03:04:05 -0000"], None, id="without a zone"),
    ],
)
async def test_time_is_that_of_the_first_answer_that_has_one(
    dates: list[str | None], first: datetime | None
) -> None:
    answers = iter(httpx2.Response(403, headers={"Date": date} if date else {}) for date in dates)
    time = ServerTime()
    transport = TimeReadingTransport(httpx2.MockTransport(lambda _: next(answers)), time)
    async with httpx2.AsyncClient(transport=transport) as client:
        for _ in dates:
            await client.get("http://cluster.example")
    assert time.first == first
