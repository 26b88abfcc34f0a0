"""Folders of tiny random networks of every family that is said to work."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import torch
import transformers as hf

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *"abcdefghijklmnopqrstuvwxyz0123456789"]
WORDS += [f"##{character}" for character in "abcdefghijklmnopqrstuvwxyz0123456789"]
SHAPE = {"hidden_size": 24, "num_hidden_layers": 3, "num_attention_heads": 2, "intermediate_size": 32}


def _wordpiece(folder: Path) -> None:
    (folder / "vocab.txt").write_text("\n".join(WORDS))
    hf.BertTokenizer(str(folder / "vocab.txt")).save_pretrained(folder)


def _characters(folder: Path, start: str, end: str, pad: str) -> int:
    """A tokenizer of single characters between a first and a last token; the number of its words."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors

    words = [start, pad, end, "<unk>", *"abcdefghijklmnopqrstuvwxyz0123456789"]
    if end == "<|endoftext|>":  # CLIP's last token has the highest number
        words = [start, pad, "<unk>", *"abcdefghijklmnopqrstuvwxyz0123456789", end]
    numbers = {word: number for number, word in enumerate(words)}
    tokenizer = Tokenizer(models.WordLevel(numbers, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    tokenizer.post_processor = processors.TemplateProcessing(
        f"{start} $A {end}", special_tokens=[(start, numbers[start]), (end, numbers[end])]
    )
    fast = hf.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token=start, eos_token=end, pad_token=pad, unk_token="<unk>"
    )
    fast.save_pretrained(folder)
    return len(words)


def bert(folder: Path) -> None:
    _wordpiece(folder)
    hf.BertModel(hf.BertConfig(vocab_size=len(WORDS), **SHAPE)).save_pretrained(folder)


def distilbert(folder: Path) -> None:
    _wordpiece(folder)
    config = hf.DistilBertConfig(vocab_size=len(WORDS), dim=24, n_layers=3, n_heads=2, hidden_dim=32)
    hf.DistilBertModel(config).save_pretrained(folder)


def roberta(folder: Path) -> None:
    n = _characters(folder, "<s>", "</s>", "<pad>")
    config = hf.RobertaConfig(
        vocab_size=n, pad_token_id=1, bos_token_id=0, eos_token_id=2, max_position_embeddings=40, **SHAPE
    )
    hf.RobertaModel(config).save_pretrained(folder)


def clip(folder: Path) -> None:
    n = _characters(folder, "<|startoftext|>", "<|endoftext|>", "<pad>")
    shape = SHAPE | {"projection_dim": 20}
    tokens = {"bos_token_id": 0, "pad_token_id": 1, "eos_token_id": n - 1}
    text = hf.CLIPTextConfig(vocab_size=n, max_position_embeddings=32, **tokens, **shape)
    vision = hf.CLIPVisionConfig(image_size=32, patch_size=16, **shape)
    both = hf.CLIPConfig(text_config=text.to_dict(), vision_config=vision.to_dict(), projection_dim=20)
    hf.CLIPModel(both).save_pretrained(folder)
    hf.CLIPImageProcessorPil().save_pretrained(folder)


def vit(folder: Path) -> None:
    hf.ViTModel(hf.ViTConfig(image_size=32, patch_size=16, **SHAPE)).save_pretrained(folder)
    hf.ViTImageProcessorPil().save_pretrained(folder)


def resnet(folder: Path) -> None:
    config = hf.ResNetConfig(embedding_size=8, hidden_sizes=[8, 12, 16, 24], depths=[1, 1, 2, 1])
    network = hf.ResNetModel(config)
    for module in network.modules():  # statistics as after training, not 0 and 1
        if isinstance(module, torch.nn.BatchNorm2d):
            torch.nn.init.normal_(module.running_mean, std=0.1)
            torch.nn.init.uniform_(module.running_var, 0.5, 1.5)
    network.save_pretrained(folder)


def swin(folder: Path) -> None:
    config = hf.SwinConfig(
        image_size=32, patch_size=2, embed_dim=8, depths=[1, 4, 1], num_heads=[1, 2, 4], window_size=4
    )
    hf.SwinModel(config).save_pretrained(folder)


def convnext(folder: Path) -> None:
    """One stage has more layers than the network has stages, as in every published one."""
    depths, sizes = [1, 1, 6, 1], [8, 12, 16, 24]
    config = hf.ConvNextConfig(image_size=32, hidden_sizes=sizes, depths=depths, layer_scale_init_value=0.5)
    hf.ConvNextModel(config).save_pretrained(folder)


def albert(folder: Path) -> None:
    _wordpiece(folder)
    hf.AlbertModel(hf.AlbertConfig(vocab_size=len(WORDS), embedding_size=12, **SHAPE)).save_pretrained(folder)


def electra(folder: Path) -> None:
    _wordpiece(folder)
    config = hf.ElectraConfig(vocab_size=len(WORDS), embedding_size=12, **SHAPE)
    hf.ElectraModel(config).save_pretrained(folder)


def visualbert(folder: Path, width: int = 24) -> None:
    """`width` is that of the image vectors it takes."""
    _wordpiece(folder)
    config = hf.VisualBertConfig(vocab_size=len(WORDS), visual_embedding_dim=width, **SHAPE)
    hf.VisualBertModel(config).save_pretrained(folder)


MAKERS: dict[str, Callable[[Path], None]] = {
    "bert": bert,
    "distilbert": distilbert,
    "roberta": roberta,
    "clip": clip,
    "vit": vit,
    "resnet": resnet,
    "swin": swin,
    "convnext": convnext,
    "albert": albert,
    "electra": electra,
    "visualbert": visualbert,
    "narrow": partial(visualbert, width=10),
}


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], str]:
    """The folder of a tiny random checkpoint of a family; `offline` is itself."""
    made: dict[str, str] = {"offline": "offline"}

    def get(family: str) -> str:
        if family not in made:
            torch.manual_seed(3)
            folder = tmp_path_factory.mktemp(family)
            MAKERS[family](folder)
            made[family] = str(folder)
        return made[family]

    return get
