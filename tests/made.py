"""Small data made for the tests: a shop of coloured shapes whose right answers are known."""

from __future__ import annotations

from PIL import Image, ImageDraw

from mufin import Catalogue, Item

COLOURS = {"red": (220, 30, 30), "green": (30, 180, 60), "blue": (40, 60, 220), "yellow": (240, 210, 40)}
SHAPES = ("circle", "square", "bar")


def picture(colour: str, shape: str, size: int = 32, shift: int = 0) -> Image.Image:
    image = Image.new("RGB", (size, size), "white")
    draw = ImageDraw.Draw(image)
    box = [4 + shift, 4 + shift, size - 6 + shift, size - 6 + shift]
    match shape:
        case "circle":
            draw.ellipse(box, fill=COLOURS[colour])
        case "square":
            draw.rectangle(box, fill=COLOURS[colour])
        case _:
            draw.rectangle([box[0], size // 2 - 3, box[2], size // 2 + 3], fill=COLOURS[colour])
    return image


def made_shop(repeats: int = 5) -> Catalogue:
    """Items of every colour and shape, some with only a title or a picture; labels: colours and shapes."""
    items, train, test = [], {}, {}
    for number in range(repeats):
        for colour in COLOURS:
            for shape in SHAPES:
                name = f"{colour}-{shape}-{number}"
                texts = [] if number == 1 else [f"{colour} {shape} {number}"]
                images = [] if number == 2 else [picture(colour, shape, shift=number % 3)]
                items.append(Item(name, texts, images, category=shape))
                split = test if number == repeats - 1 else train
                split[name] = [f"q-{colour}", f"q-{shape}"]
    labels = [Item(f"q-{word}", [f"{word} things"]) for word in (*COLOURS, *SHAPES)]
    return Catalogue.build(items, labels, train=train, test=test)
