"""The memory that hostile images can take: how much an image needs, which are refused, and which wait for each other.

An image that needs more than MOST is refused by its header. Those that need more than ORDINARY are decoded one at a time on a
machine, in whichever process. So the sum is at most MOST, and ORDINARY in each further process that decodes: 1 GB with two.
"""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import BinaryIO

from PIL.ImageFile import ImageFile

from debgcd.data.image.jpeg import keeps_coefficients, most_bytes

MOST, ORDINARY = 800_000_000, 200_000_000  # bytes

# Bytes per pixel at the peak, as measured.
PLAIN = 7  # Pillow's image takes 4, the result 3
EXTRA = {"TIFF": 4, "WEBP": 10, "AVIF": 7, "HEIF": 7}  # what the format's library has of its own
SCALED = 32  # of a JPEG decoded at a smaller scale, per pixel of the result: sharpening needs it
COEFFICIENTS = 8  # of a JPEG of several scans, at any scale
IN_MEMORY = {"WEBP", "AVIF", "HEIF"}  # the content of these files is read as a whole


def memory(image: ImageFile, file: BinaryIO, size: int, kind: str, scale: int) -> int:
    """About how many bytes decoding takes at its peak; image: just opened; size: of the file; scale: of a JPEG, 1 to 8."""
    each = (PLAIN if scale == 1 else SCALED / scale**2) + EXTRA.get(kind, 0)
    content = size if kind in IN_MEMORY else 0
    if kind == "JPEG":
        each += COEFFICIENTS if keeps_coefficients(image, file) else 0
        content = min(size, most_bytes(*image.size))
    return int(each * image.width * image.height) + content


@contextmanager
def one_at_a_time() -> Iterator[None]:
    """Wait until no other thread or process of this machine is in such a block."""
    try:
        import fcntl
    except ImportError:  # this system has no such locks
        yield
        return
    with open(__file__, "rb") as file:  # a file that every process finds; each opening of it is a holder of its own
        with suppress(OSError):  # a file system without locks
            fcntl.flock(file, fcntl.LOCK_EX)
        try:
            yield
        finally:
            with suppress(OSError):
                fcntl.flock(file, fcntl.LOCK_UN)  # closing would not do if a fork has inherited it
