"""`mufin recommend`: show the best labels of one item."""

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

GOOD = 0.2  # as on the page: below, even the first label is wrong four times out of five
PICTURES = (".png", ".jpg", ".jpeg", ".webp", ".gif", ".bmp", ".tif", ".tiff")


def recommend(
    run: Run,
    text: Annotated[
        list[str] | None, typer.Argument(metavar="TEXT", help="One or more texts of the item.")
    ] = None,
    image: Annotated[
        list[Path] | None, typer.Option(metavar="FILE", help="Image of the item; repeatable.")
    ] = None,
    k: Best = 10,
    allow: Annotated[
        list[str] | None, typer.Option(metavar="ID", help="Rank only this label; repeatable.")
    ] = None,
    deny: Annotated[
        list[str] | None, typer.Option(metavar="ID", help="Exclude this label; repeatable.")
    ] = None,
    device: Device = "auto",
    exact: Exact = False,
    json: Json = False,
) -> None:
    """Show the best labels of one item.

    With a fixed β, score = β · classifier + (1 − β) · similarity. Otherwise, the score is a mixture learnt
    during training, which includes the votes of similar training datapoints (memory).

    \b
    Example:
      mufin recommend runs/shop "oak desk" --image desk.jpg -k 5
    """
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # more threads cost start-up time and do not help one query
    from mufin.data.item import Item

    try:
        "".join(text or ()).encode()
    except UnicodeEncodeError:
        raise UsageError("the text is not valid UTF-8; check the encoding of the terminal") from None
    item = Item(texts=text or (), images=tuple(image or ()))
    if item.is_empty:
        raise UsageError("no text and no image; pass a text, or an image with --image FILE")
    for name in text or ():
        if Path(name).suffix.lower() in PICTURES and Path(name).is_file():
            printing.warn(f"{name} is read as text; to read the image, use --image {name}")
    for path in image or ():
        from mufin.data.images import open_picture

        open_picture(path, 64)  # a broken image is an error here; in a catalogue, it is skipped
    model = load_model(run, device, exact)
    if item.images and model.config.modalities == "text":
        printing.warn("this model reads text only; images are ignored")
    hits = model.recommend(item, k, allow or None, deny or ())
    if json:
        printing.show_json({"hits": [hit.as_dict() for hit in hits]})
        return
    numbers = [(h.probability, h.score, *h.parts.values()) for h in hits]
    texts = ["text"] if any(h.text not in ("", h.label) for h in hits) else []
    names = [[h.label, h.text][: 1 + len(texts)] for h in hits]
    rows = [[*name, *(f"{x:z.3f}" for x in row)] for name, row in zip(names, numbers, strict=True)]
    parts = hits[0].parts if hits else ()
    header = ["label", *texts, "probability", "score", *parts]
    printing.show_table(header, rows, left=1 + len(texts))
    if hits and (chance := hits[0].probability) < GOOD:
        shown = "less than 1 %" if chance < 0.01 else f"{chance * 100:.0f} %"
        printing.warn(f"no good label: even the first one is {shown} likely to be relevant")
