"""The OpenAPI schema: true about the service, which answers whatever fits it or does not."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import uvicorn

CASES = 2000


@pytest.fixture
def address(model_folder: Path, served: tuple[Path, Path]) -> Iterator[str]:
    """A real server in a thread of this process."""
    from mufin.serve.app import build_app
    from mufin.serve.limits import Settings
    from mufin.serve.run import build_service, listen

    listener = listen("127.0.0.1", 0)
    app = build_app(build_service(model_folder, served[1], Settings()))
    server = uvicorn.Server(uvicorn.Config(app, log_config=None, access_log=False))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    while not server.started:
        time.sleep(0.01)
    yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    server.should_exit = True
    thread.join()
    listener.close()


def test_no_case_breaks_the_service(address: str) -> None:
    import schemathesis
    from hypothesis import HealthCheck, Phase, given, settings
    from schemathesis.generation import GenerationMode

    schema = schemathesis.openapi.from_url(f"{address}/openapi.json")
    operations = [found.ok() for found in schema.get_all_operations()]
    assert len(operations) >= 15
    answers: Counter[int] = Counter()
    each = -(-CASES // (2 * len(operations)))
    for operation in operations:
        for mode in (GenerationMode.POSITIVE, GenerationMode.NEGATIVE):

            @settings(
                max_examples=each, deadline=None, database=None, phases=[Phase.generate], derandomize=True,
                suppress_health_check=list(HealthCheck),
            )  # fmt: skip
            @given(case=operation.as_strategy(generation_mode=mode))
            def ask(case: Any) -> None:
                answer = case.call()
                answers[answer.status_code] += 1
                assert answer.status_code < 500, f"{case.as_curl_command()}\n{answer.text}"
                if answer.status_code >= 400:
                    assert answer.headers["content-type"][0] == "application/problem+json"

            ask()
    assert sum(answers.values()) >= CASES, answers
    assert answers[200] > 200, answers
    assert answers[422] > 200, answers
