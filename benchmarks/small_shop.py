"""A small shop: 600 products with titles and drawings, labelled by kind, group and colour."""

from __future__ import annotations

import numpy as np
from PIL import Image, ImageDraw

from mufin import Catalogue, Item

TEST_FRACTION = 0.2
SIDE = 64  # pixels of a drawing
COLOURS = {
    "red": (200, 40, 40), "green": (40, 150, 70), "blue": (40, 70, 190), "yellow": (230, 200, 50),
    "black": (30, 30, 30), "white": (240, 240, 240), "grey": (128, 128, 128), "brown": (120, 80, 50),
}  # fmt: skip
MATERIALS = ["oak", "pine", "steel", "glass", "cotton", "wool", "leather", "ceramic"]
GROUPS = {
    "lighting": ["desk lamp", "floor lamp", "lantern", "candle holder"],
    "seating": ["chair", "stool", "armchair", "bench"],
    "storage": ["shelf", "basket", "drawer box", "coat rack"],
    "kitchen": ["mug", "plate", "teapot", "cutting board"],
    "textiles": ["rug", "cushion", "blanket", "curtain"],
}


def small_shop(products: int = 600) -> Catalogue:
    """Titles such as "red oak desk lamp 42"; labels are the kind, the group and the colour."""
    random = np.random.default_rng(0)
    kinds = [(group, kind) for group, names in GROUPS.items() for kind in names]
    items, train, test = [], {}, {}
    for number in range(products):
        which = int(random.integers(len(kinds)))
        group, kind = kinds[which]
        colour, material = str(random.choice([*COLOURS])), random.choice(MATERIALS)
        title = f"{colour} {material} {kind} {random.integers(10, 99)}"
        items.append(Item(f"p{number}", [title], [drawing(colour, which, random)]))
        split = test if random.random() < TEST_FRACTION else train
        split[f"p{number}"] = [f"l-{word}" for word in (kind, group, colour)]
    words = [*(kind for _, kind in kinds), *GROUPS, *COLOURS]
    return Catalogue.build(items, [Item(f"l-{w}", [w]) for w in words], train=train, test=test)


def drawing(colour: str, kind: int, random: np.random.Generator) -> Image.Image:
    """An ellipse or a box of the colour, with a foot and a line that depend on the kind."""
    image = Image.new("RGB", (SIDE, SIDE), "white")
    draw, fill = ImageDraw.Draw(image), COLOURS[colour]
    x, y = random.integers(2, 10, 2).tolist()
    shape = draw.rectangle if kind % 4 == 1 else draw.ellipse
    shape([x, y, 50 + x // 2, 40 + kind * 3 % 20], fill=fill)
    if kind % 4 >= 2:
        draw.rectangle([28, 30, 36, 62], fill=fill)
    if kind // 4 % 2:
        draw.line([4, 60, 60, 60], fill=fill, width=4)
    return image
