"""/v1/recommend: the best labels of items."""

from __future__ import annotations

import json
import time
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import Response

from mufin.serve import responses
from mufin.serve.answer import Ask
from mufin.serve.requests import FORM, content_type, documented, form_body, json_body, service_of
from mufin.serve.schemas import RecommendBody

router = APIRouter(prefix="/v1")
MANY = 400  # hits; longer answers are written outside the event loop
EXAMPLE = {"items": [{"texts": ["oak desk"]}], "k": 3}


@router.post(
    "/recommend",
    response_model=responses.Recommended,
    response_model_exclude_unset=True,
    responses=responses.shown(responses.RECOMMEND),
    openapi_extra=documented(RecommendBody, EXAMPLE, **FORM),
)
async def recommend(request: Request) -> Any:
    """Recommend labels for one item or many."""
    started = time.perf_counter()
    service = service_of(request)
    form = content_type(request) == "multipart/form-data"
    body = await form_body(request) if form else await json_body(request, RecommendBody)
    queries = await service.queries(body.items)
    allow = None if body.allow is None else tuple(body.allow)
    ask = Ask(queries, body.k, allow, tuple(body.deny), body.min_probability)
    answer = await service.recommend(ask)
    results: list[dict[str, Any]] = [{"hits": hits} for hits in answer.hits]
    if body.explain:
        results = [
            {**result, "explain": {"descriptors": service.descriptors(query)}}
            for result, query in zip(results, queries, strict=True)
        ]
    seconds = time.perf_counter() - started
    service.metrics.stage("total", seconds)
    facts = {"took_ms": round(1e3 * seconds, 2), "model": answer.version}
    if sum(map(len, answer.hits)) < MANY:
        return {"results": results, **facts}
    return Response(await service.in_pool(_written, results, facts), media_type="application/json")


def _written(results: list[dict[str, Any]], facts: dict[str, Any]) -> bytes:
    """Write a long answer one result at a time: `json.dumps` of all would block every other thread."""
    parts = [json.dumps(result, ensure_ascii=False, allow_nan=False) for result in results]
    rest = json.dumps(facts)
    return f'{{"results":[{",".join(parts)}],{rest[1:]}'.encode()
