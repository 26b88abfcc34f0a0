"""Asking: /v1/recommend."""

from __future__ import annotations

import time
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse

from mufin.serve import samples
from mufin.serve.answer import Answer, Ask
from mufin.serve.body import content_type, documented, json_body, service_of
from mufin.serve.forms import FORM, form_body
from mufin.serve.schemas import RecommendBody

router = APIRouter(prefix="/v1")
EXAMPLE = {"items": [{"texts": ["oak desk"]}], "k": 3}


@router.post(
    "/recommend",
    responses=samples.shown(samples.RECOMMEND),
    openapi_extra=documented(RecommendBody, EXAMPLE, **FORM),
)
async def recommend(request: Request) -> JSONResponse:
    """The best labels of one item or many."""
    started = time.perf_counter()
    service = service_of(request)
    form = content_type(request) == "multipart/form-data"
    body = await form_body(request) if form else await json_body(request, RecommendBody)
    queries = await service.queries(body.items)
    allow = None if body.allow is None else tuple(body.allow)
    ask = Ask(queries, body.k, allow, tuple(body.deny), body.explain, body.min_probability)
    answer: Answer = await service.batcher.ask(ask, sum(query.weight for query in queries))
    results: list[dict[str, Any]] = [{"hits": hits} for hits in answer.hits]
    if body.explain:
        results = [
            {**result, "explain": {"descriptors": service.descriptors(query)}}
            for result, query in zip(results, queries, strict=True)
        ]
    seconds = time.perf_counter() - started
    service.metrics.stage("total", seconds)
    return JSONResponse({"results": results, "took_ms": round(1e3 * seconds, 2), "model": answer.version})
