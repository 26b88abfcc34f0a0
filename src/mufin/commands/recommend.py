"""`mufin recommend`: the best labels of one item."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from mufin.commands import printing
from mufin.commands.options import (
    Best,
    Device,
    Exact,
    Json,
    Run,
    load_model,
)  # fmt: skip
from mufin.errors import UsageError


def recommend(
    run: Run,
    text: Annotated[list[str] | None, typer.Argument(metavar="TEXT", help="Texts of the item.")] = None,
    image: Annotated[
        list[Path] | None, typer.Option(metavar="FILE", help="A picture of the item; repeatable.")
    ] = None,
    k: Best = 10,
    allow: Annotated[
        list[str] | None, typer.Option(metavar="ID", help="Only labels so named; repeatable.")
    ] = None,
    deny: Annotated[
        list[str] | None, typer.Option(metavar="ID", help="Never this label; repeatable.")
    ] = None,
    device: Device = "auto",
    exact: Exact = False,
    json: Json = False,
) -> None:
    """Show the best labels of one item.

    score = β · classifier + (1 − β) · similarity with a fixed β, else a mixture learnt in training, in which
    the votes of similar training points (memory) take part.

    \b
    Example:
      mufin recommend runs/shop "oak desk" --image desk.jpg -k 5
    """
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # one query gains nothing by more, which take time to start
    from mufin.data.item import Item

    try:
        "".join(text or ()).encode()
    except UnicodeEncodeError:
        raise UsageError("the text is not UTF-8; expected readable text") from None
    item = Item(texts=text or (), images=tuple(image or ()))
    if item.is_empty:
        raise UsageError("nothing to look at: give a text, or a picture with --image FILE")
    for picture in image or ():
        from mufin.data.images import open_picture

        open_picture(picture, 64)  # among many, a broken picture is left out; the only item's is an error
    model = load_model(run, device, exact)
    if item.images and model.config.modalities == "text":
        printing.warn("this model reads texts only; the picture is not looked at")
    hits = model.recommend(item, k, allow or None, deny or ())
    if json:
        printing.show_json({"hits": [hit.as_dict() for hit in hits]})
        return
    numbers = [(h.probability, h.score, *h.parts.values()) for h in hits]
    rows = [[h.label, h.text, *(f"{x:.3f}" for x in row)] for h, row in zip(hits, numbers, strict=True)]
    parts = hits[0].parts if hits else ()
    printing.show_table(["label", "text", "probability", "score", *parts], rows, left=2)
