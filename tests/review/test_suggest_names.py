"""Suggested names: known classes by the run's own features, words by a text–image model; nothing is ever named."""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from debgcd.data.thumbnails import square
from debgcd.errors import DebgcdError
from debgcd.model.text_image import PROMPT, load_text_image
from debgcd.review.log import LOG, reviewed_predictions
from debgcd.review.page.similar import compute, read_features
from debgcd.review.suggest_names import SEEN, read_words, suggest
from debgcd.run.directory import finished_run

Command = Callable[..., Any]
WORDS = ["red owl", "blue dog", "cat"]
SIZE = 32


@pytest.fixture(scope="module")
def clip(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small random model in CLIP's form, as the hub has them: safetensors, a tokenizer, the statistics of pixels."""
    transformers = importlib.import_module("transformers")
    folder = tmp_path_factory.mktemp("clip")
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
    letters = [chr(c) for c in range(ord("a"), ord("z") + 1)]
    vocabulary = {text: i for i, text in enumerate([*letters, *(f"{one}</w>" for one in letters)])}
    vocabulary |= {"<|startoftext|>": len(vocabulary), "<|endoftext|>": len(vocabulary) + 1}
    tokenizer = transformers.CLIPTokenizer(vocab=vocabulary, merges=[])
    torch.manual_seed(0)
    config = transformers.CLIPConfig(
        text_config={
            **sizes,
            "vocab_size": len(vocabulary),
            "max_position_embeddings": 64,
            "eos_token_id": len(vocabulary) - 1,
        },
        vision_config={**sizes, "image_size": SIZE, "patch_size": 8},
        projection_dim=16,
    )
    transformers.CLIPModel(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    (folder / "preprocessor_config.json").write_text(json.dumps({"image_mean": [0.5] * 3, "image_std": [0.25] * 3}))
    return folder


def test_known_classes_that_a_category_looks_like(finished: Path, tmp_path: Path, command: Command) -> None:
    """By hand: the cosine between the means of all images of both."""
    run = finished_run(finished / "run")
    found = suggest(run, tmp_path)
    assert found and [one.images for one in found] == sorted((one.images for one in found), reverse=True)
    feature, label = read_features(compute(run.folder, tmp_path)), run.manifest.training_labels
    rows = [line.split(",") for line in run.predictions.read_text("utf-8").splitlines()[1:]]
    assert len(rows) == 60
    category = label.copy()
    category[label < 0] = [row["category"] for row in reviewed_predictions(run.folder)[0]]
    for one in found:
        assert not one.category.known and one.words == [] and len(one.like) == 2
        own = feature[category == one.category.category].mean(0)
        for number, name in enumerate(run.manifest.classes):
            other = feature[category == number].mean(0)
            cosine = float(own @ other / np.linalg.norm(own) / np.linalg.norm(other))
            assert dict(one.like)[name] == pytest.approx(cosine, abs=1e-5)
    said = command("name", run.folder, "--suggest", "--cache", tmp_path)
    assert said.code == 0 and said.out.count("new-") == len(found) + 1 and "nothing was named" in said.out
    assert not (run.folder / LOG).exists()


def test_words_are_compared_as_the_model_itself_does(
    finished: Path, clip: Path, tmp_path: Path, command: Command
) -> None:
    """Against the library's own forward pass from pixels to probabilities, for the most typical images."""
    run = finished_run(finished / "run")
    found = suggest(run, tmp_path, WORDS, str(clip))
    transformers = importlib.import_module("transformers")
    model = transformers.CLIPModel.from_pretrained(clip).eval()
    given = transformers.CLIPTokenizer.from_pretrained(clip)(
        [PROMPT.format(word) for word in WORDS], padding=True, return_tensors="pt"
    )
    feature, label = read_features(compute(run.folder, tmp_path)), run.manifest.training_labels
    category = np.full(len(label), -1)
    category[label < 0] = [row["category"] for row in reviewed_predictions(run.folder)[0]]
    for one in found:
        members = np.flatnonzero(category == one.category.category)
        mean = feature[members].mean(0)
        typical = members[np.argsort(-(feature[members] @ mean), kind="stable")][:SEEN]
        pixels = np.stack([np.asarray(square(run.manifest.training_paths[i], SIZE)) for i in typical])
        with torch.no_grad():
            said = model(**given, pixel_values=(torch.tensor(pixels).permute(0, 3, 1, 2) / 255 - 0.5) / 0.25)
        expected = dict(zip(WORDS, said.logits_per_image.softmax(1).mean(0).tolist(), strict=True))
        assert dict(one.words) == pytest.approx(expected, abs=1e-4)
        assert [score for _, score in one.words] == sorted((score for _, score in one.words), reverse=True)
    listed = tmp_path / "words.txt"
    listed.write_text("# birds\nred owl\n\nblue dog\nblue dog\n")
    assert read_words(listed) == ["red owl", "blue dog"]
    shown = command("name", run.folder, "--suggest", listed, "--model", clip, "--cache", tmp_path)
    assert shown.code == 0 and "red owl 0." in shown.out and not (run.folder / LOG).exists()


def test_what_is_refused_in_words(
    command: Command, finished: Path, clip: Path, tmp_path: Path, monkeypatch: Any
) -> None:
    run, one = finished / "run", tmp_path / "one.txt"
    one.write_text("owl\n")
    assert "either CATEGORY=NAME" in command("name", run).complaint
    assert "either CATEGORY=NAME" in command("name", run, "new-01=owl", "--suggest").complaint
    assert "has 1 words" in command("name", run, "--suggest", one).complaint
    assert "needs a file of words" in command("name", run, "--suggest", "--model", clip).complaint
    with pytest.raises(DebgcdError, match=r"config\.json"):
        load_text_image(str(tmp_path), tmp_path)
    (tmp_path / "config.json").write_text('{"model_type": "bert"}')
    with pytest.raises(DebgcdError, match="of type 'bert', not clip"):
        load_text_image(str(tmp_path), tmp_path)
    (tmp_path / "config.json").write_bytes((clip / "config.json").read_bytes())
    (tmp_path / "pytorch_model.bin").write_bytes(b"cos\nsystem\n")  # a pickle is never read
    with pytest.raises(DebgcdError, match="cannot be read"):
        load_text_image(str(tmp_path), tmp_path)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(DebgcdError, match="text-image model nobody/nothing is not on this machine"):
        load_text_image("nobody/nothing", tmp_path)
