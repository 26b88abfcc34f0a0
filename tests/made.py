"""Small data made for the tests: a shop of coloured shapes whose right answers are known."""

from __future__ import annotations

from pathlib import Path

from PIL import Image, ImageDraw

from mufin import Catalogue, Config, Item

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


def made_encoders(folder: Path) -> tuple[str, str]:
    """Folders of a BERT and a ViT of a few thousand random weights: the real loading code, in no time."""
    import torch
    import transformers as hf

    torch.manual_seed(0)
    text, vision = folder / "text", folder / "vision"
    text.mkdir(parents=True)
    vision.mkdir()
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *"abcdefghijklmnopqrstuvwxyz0123456789"]
    words += [f"##{character}" for character in "abcdefghijklmnopqrstuvwxyz0123456789"]
    (text / "vocab.txt").write_text("\n".join(words))
    shape = {"hidden_size": 24, "num_hidden_layers": 3, "num_attention_heads": 2, "intermediate_size": 32}
    hf.BertModel(hf.BertConfig(vocab_size=len(words), **shape)).save_pretrained(text)
    hf.BertTokenizer(str(text / "vocab.txt")).save_pretrained(text)
    hf.ViTModel(hf.ViTConfig(image_size=32, patch_size=16, **shape)).save_pretrained(vision)
    return str(text), str(vision)


def made_config(text: str, vision: str) -> Config:
    """Settings that train in a second."""
    return Config.parse(
        {
            "text": {"model": text, "train_layers": 0, "max_length": 16},
            "vision": {"model": vision, "train_layers": 0},
            "embed": {"dim": 16, "projection": "linear"},
            "pretrain": {"epochs": 3, "batch": 16, "lr": 1e-2, "loss": "softmax", "sampled": 8},
            "finetune": {
                "epochs": 3,
                "batch": 16,
                "lr": 1e-2,
                "loss": "softmax",
                "sampled": 8,
                "negatives": 4,
            },
            "rank": {"cross": "attention"},
            "run": {"validation": 0.1},
        },
        "tiny",
    )
