"""What it gains to take pixels and tokens through the network in chunks on a CPU; written into docs/performance.md.

.venv/bin/python benchmarks/chunks.py [--turns 5]

Both ways take turns in one process. Without chunks, the trunk has 16 images per core at a time and the tail the whole batch. The
ViT-S has random weights, since the time of a product does not depend on its values.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor
from transformers import ViTConfig, ViTModel

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))  # for grid.py

from grid import write_between  # noqa: E402

from debgcd.model import backbone as backbones  # noqa: E402
from debgcd.model.backbone import Backbone  # noqa: E402
from debgcd.model.lite import load_lite  # noqa: E402
from debgcd.model.load import load_backbone  # noqa: E402
from debgcd.model.prompts import PixelPrompts, Prompted  # noqa: E402
from debgcd.system.machine import facts  # noqa: E402
from debgcd.system.text_table import markdown_table  # noqa: E402

SIDE, BATCH, FEW = 160, 256, 64


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=5, metavar="N", help="the best of so many")
    options = parser.parse_args()
    rows = []
    for name, (work, whole) in works().items():
        seconds: dict[int, list[float]] = {whole: [], backbones.CHUNK: []}
        for _ in range(1 + options.turns):  # the first one warms up
            for chunk, times in seconds.items():
                backbones.CHUNK = chunk
                start = time.perf_counter()
                work()
                times.append(time.perf_counter() - start)
        before, now = (min(times[1:]) for times in seconds.values())
        rows.append([name, f"{before:.2f} s", f"{now:.2f} s", f"{before / now:.2f}×"])
        print(*rows[-1], flush=True)
    machine = facts()
    told = (
        f"The best of {options.turns} turns each; {machine['date']}, {machine['processor']}, {machine['instructions']}, "
        f"{machine['threads']} threads, float32, by `benchmarks/chunks.py`."
    )
    table = markdown_table(["what", "without", "with chunks", "ratio"], rows)
    write_between(HERE.parent / "docs" / "performance.md", "benchmarks/chunks.py", f"{table}\n\n{told}")


def works() -> dict[str, tuple[Callable[[], object], int]]:
    """What is timed, and the size of a chunk that stands for none."""
    lite, prompted = (
        load_lite(tuned_blocks=2),
        Prompted(load_lite(tuned_blocks=2), PixelPrompts(SIDE, 16, 1, 21, 0.0, 0)),
    )
    images = torch.randint(0, 256, (BATCH, 3, SIDE, SIDE), dtype=torch.uint8)
    tokens, pixels = lite.trunk(images), prompted.trunk(images[:FEW])
    with tempfile.TemporaryDirectory() as folder:
        shape = ViTConfig(hidden_size=384, num_attention_heads=6, intermediate_size=1536)
        ViTModel(shape, add_pooling_layer=False).save_pretrained(folder)
        vit = load_backbone(folder, tuned_blocks=2, image_size=224)
    everything = 2**62
    return {
        f"trunk of lite0, {BATCH} views of {SIDE} px": (lambda: lite.trunk(images), 16 * images[0].numel()),
        f"step of its tail, {BATCH} views": (lambda: step(lite, tokens), everything),
        f"step of SPTNet's whole network, {FEW} views of {SIDE} px": (lambda: step(prompted, pixels), everything),
        f"step of the tail of ViT-S/16, {FEW} views": (lambda: step(vit, torch.randn(FEW, 197, 384)), everything),
    }


def step(backbone: Backbone, tokens: Tensor) -> None:
    """Forward and backward, two tuned blocks."""
    backbone.features(tokens).square().mean().backward()


if __name__ == "__main__":
    main()
