"""/v1/embed: the embeddings of items."""

from __future__ import annotations

import json
import time
from typing import Any

import numpy as np
from fastapi import APIRouter, Request
from fastapi.responses import Response

from mufin.serve import responses
from mufin.serve.requests import documented, json_body, service_of
from mufin.serve.schemas import EmbedBody

router = APIRouter(prefix="/v1")
EXAMPLE = {"items": [{"texts": ["oak desk"]}]}
DIGITS = 7  # after the point: the error of f32


@router.post(
    "/embed",
    response_model=responses.Embedded,
    responses=responses.shown(responses.EMBED),
    openapi_extra=documented(EmbedBody, EXAMPLE),
)
async def embed(request: Request) -> Any:
    """Embed items with the model: x̂¹, in the order of the items."""
    started = time.perf_counter()
    service = service_of(request)
    body = await json_body(request, EmbedBody)
    vectors, version = await service.embed(await service.queries(body.items))
    facts = {"took_ms": round(1e3 * (time.perf_counter() - started), 2), "model": version}
    return Response(await service.in_pool(_written, vectors, facts), media_type="application/json")


def _written(vectors: np.ndarray, facts: dict[str, Any]) -> bytes:
    """Write the answer one vector at a time, so that other threads can run in between."""
    rows = [json.dumps(row.astype(np.float64).round(DIGITS).tolist()) for row in vectors]
    return f'{{"vectors":[{",".join(rows)}],{json.dumps(facts)[1:]}'.encode()
