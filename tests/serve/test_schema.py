"""The OpenAPI schema: true about the service, which answers whatever fits it or does not."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import uvicorn

CASES = 2000


@pytest.fixture
def address(model_folder: Path, served: tuple[Path, Path]) -> Iterator[str]:
    """A real server in a thread of this process."""
    from mufin.serve.app import build_app, build_service, listen
    from mufin.serve.schemas import Settings

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
    from hypothesis import HealthCheck, Phase, given, seed, settings
    from hypothesis.errors import Unsatisfiable
    from schemathesis.generation import GenerationMode

    schema = schemathesis.openapi.from_url(f"{address}/openapi.json")
    operations = [found.ok() for found in schema.get_all_operations()]
    assert len(operations) >= 15
    answers: Counter[int] = Counter()

    def ask(operation: Any, mode: GenerationMode, number: int) -> None:
        @seed(number)
        @settings(
            max_examples=60, deadline=None, database=None, phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )  # fmt: skip
        @given(case=operation.as_strategy(generation_mode=mode))
        def one(case: Any) -> None:
            answer = case.call()
            answers[answer.status_code] += 1
            assert answer.status_code < 500, f"{case.as_curl_command()}\n{answer.text}"
            if answer.status_code >= 400:
                assert answer.headers["content-type"][0] == "application/problem+json"

        one()

    rounds = 0
    while sum(answers.values()) < CASES:
        for operation in operations:
            ask(operation, GenerationMode.POSITIVE, rounds)
            with suppress(Unsatisfiable):  # nothing can be wrong where nothing is given
                ask(operation, GenerationMode.NEGATIVE, rounds)
        rounds += 1
    assert answers[200] > 100, answers
    assert answers[422] > 100, answers


def test_the_schema_has_examples_that_work(address: str) -> None:
    import json
    import urllib.error
    import urllib.request

    with urllib.request.urlopen(f"{address}/openapi.json", timeout=10) as answer:
        schema = json.load(answer)
    bodies = [
        (path, method, operation["requestBody"]["content"]["application/json"]["example"])
        for path, methods in schema["paths"].items()
        for method, operation in methods.items()
        if "requestBody" in operation
    ]
    assert len(bodies) == 6
    for path, method, body in sorted(bodies, key=lambda one: (one[1] == "delete", one[0] != "/v1/labels")):
        request = urllib.request.Request(
            address + path,
            json.dumps(body).encode(),
            {"Content-Type": "application/json"},
            method=method.upper(),
        )
        with urllib.request.urlopen(request, timeout=10) as answer:
            found = json.load(answer)
        shown = next(iter(schema["paths"][path][method]["responses"].values()))
        assert set(shown["content"]["application/json"]["example"]) == set(found), path
