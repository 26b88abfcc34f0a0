"""/v1/explain: how one item relates to one label."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

import numpy as np
import torch
from fastapi import APIRouter, Request

from mufin.encode.bag import Bag
from mufin.encode.features import Groups
from mufin.model.explain import attention, label_texts, nearest
from mufin.serve import responses
from mufin.serve.answer import Query, table_of
from mufin.serve.live import State
from mufin.serve.problem import Problem
from mufin.serve.requests import documented, json_body, service_of
from mufin.serve.routes.labels import row_of
from mufin.serve.schemas import ExplainBody, check_cost

router = APIRouter(prefix="/v1")
EXAMPLE = {"item": {"texts": ["oak desk"]}, "label": "desk-1"}


@router.post(
    "/explain",
    response_model=responses.Explained,
    response_model_exclude_unset=True,
    responses=responses.shown(responses.EXPLAIN),
    openapi_extra=documented(ExplainBody, EXAMPLE),
)
async def explain(request: Request) -> Any:
    """Explain a pair: attention between descriptors, nearest labels, nearest training examples."""
    service = service_of(request)
    body = await json_body(request, ExplainBody)
    (query,) = await service.queries([body.item], "item")
    state = service.live.state
    row = row_of(state, body.label)
    costs = service.costs([query])
    check_cost(costs, "item")
    bag: Bag = await service.batcher.call(lambda: _bag(state, query), costs[0])
    facts: dict[str, Any] = await service.in_pool(_facts, state, bag, row)
    examples = [] if service.examples is None else await service.examples.nearest(bag.vector()[0], body.label)
    return {"query": service.descriptors(query), **facts, "examples": examples}


@torch.no_grad()
def _bag(state: State, query: Query) -> Bag:
    """Return X̂¹, (1, m, D)."""
    features = state.model.features(table_of([query]))
    if not features.sizes[0]:
        raise Problem(422, f"item has nothing that this model reads ({state.model.config.modalities})")
    bags = state.model.embedder.embed(features, Groups.singles(np.arange(1)))
    return bags.take(torch.zeros(1, dtype=torch.int64))


@torch.no_grad()
def _facts(state: State, x: Bag, row: int) -> dict[str, Any]:
    z = state.labels.bags.take(torch.tensor([row]))  # (1, n, D)
    kind, weights = attention(state.model.ranker, x, z)
    return {
        "label": _descriptors(state, row, int(z.mask.sum())),
        "attention": weights[0][:, z.mask[0]].tolist(),
        "kind": kind,
        "alpha": float(state.labels.alpha[row]),
        "frequency": int(state.labels.frequency[row]),
        "nearest": [
            vars(one) | {"images": int(state.images[other])}
            for other, one in nearest(state.model, z.vector(), row)
        ],
    }


def _descriptors(state: State, row: int, rows: int) -> list[dict[str, Any]]:
    """Describe the rows of a label's bag: its texts, then its images, of which the model keeps a few."""
    texts, kept = label_texts(state.model, row), int(state.images[row])
    address = f"/v1/labels/{quote(state.labels.items.ids[row].as_py(), safe='')}/image/"
    images = [
        {"kind": "image", "n": n, "url": f"{address}{n}" if n < kept else None}
        for n in range(rows - len(texts))
    ]
    return [*({"kind": "text", "text": text} for text in texts[:rows]), *images]
