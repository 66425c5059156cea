"""Decode a file to (H, W, 3) uint8 pixels, or raise `Unusable` with a typed reason; no other error escapes.

Formats are recognised by their first bytes, never by the file name, and only those in `_PLUGINS` are tried. Pillow also
supports formats that start other programs (EPS calls Ghostscript), and debgcd must never execute a file it is given."""

from __future__ import annotations

import errno
import importlib
import os
import stat
import struct
import threading
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from enum import StrEnum
from types import TracebackType
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageFile

from debgcd.data.image.crop import SIDEWAYS, BadBox, Box, Crop, Picture, turn_and_cut
from debgcd.data.image.jpeg import decode_quickly, keeps_coefficients, most_bytes, scale_down, sharpen
from debgcd.errors import UsageError
from debgcd.system.machine import optional

JPEG_HEADER = 20  # bytes of a JPEG's signature and first segment
# Words of Pillow's errors that mean that a file is cut off.
_CUT_OFF = ("truncated", "unexpected end", "end of file", "no more images", "missing dimensions")


def ends_early(file: BinaryIO, size: int, kind: str) -> bool:
    """Whether the file is shorter than its container states, for those formats whose library's errors do not tell."""
    try:
        if kind == "PNG":
            return _png(file) > size
        if kind == "WEBP":
            return _read(file, "<I", 4)[0] + 8 > size
        if kind == "JPEG":  # with no more than a signature there is no image to identify
            return size < JPEG_HEADER
        return kind in ("HEIF", "AVIF") and _boxes(file, size) > size
    except (struct.error, OSError):  # ran out of bytes while reading the structure
        return True


def _read(file: BinaryIO, form: str, at: int) -> tuple[Any, ...]:
    file.seek(at)
    return struct.unpack(form, file.read(struct.calcsize(form)))


def _png(file: BinaryIO) -> int:
    at, chunk = 8, b""
    while chunk != b"IEND":
        length, chunk = _read(file, ">I4s", at)
        at += length + 12
    return at


def _boxes(file: BinaryIO, size: int) -> int:
    """Top-level boxes with a 32-bit length each."""
    at = 0
    while at < size:
        (length,) = _read(file, ">I", at)
        if length < 8:  # 0 means "to the end of the file", 1 means "a 64-bit length follows"
            return size
        at += length
    return at


MOST, ORDINARY = 800_000_000, 200_000_000  # bytes

# Bytes per pixel at the peak, as measured.
PLAIN = 7  # Pillow's image takes 4, the result 3
EXTRA = {"TIFF": 4, "WEBP": 10, "AVIF": 7, "HEIF": 7}  # what the format's library has of its own
SCALED = 32  # of a JPEG decoded at a smaller scale, per pixel of the result: sharpening needs it
COEFFICIENTS = 8  # of a JPEG of several scans, at any scale
IN_MEMORY = {"WEBP", "AVIF", "HEIF"}  # the content of these files is read as a whole


def memory(image: ImageFile.ImageFile, file: BinaryIO, size: int, kind: str, scale: int) -> int:
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


STRIP = 2**20  # pixels converted together
MAX_PIXELS = 200_000_000  # according to the header; a larger image is refused before decoding
MOST_OF_RUNS = (
    16_000_000  # pixels of a run-length encoded BMP that its bytes need not hold: Pillow fills them in one by one
)
MAX_ASPECT = 8  # longer images are cropped: a 2000 × 1 strip with a short side of 256 would have half a million columns

_PLUGINS = {
    "JPEG": "PIL.JpegImagePlugin",
    "PNG": "PIL.PngImagePlugin",
    "GIF": "PIL.GifImagePlugin",
    "BMP": "PIL.BmpImagePlugin",
    "TIFF": "PIL.TiffImagePlugin",
    "WEBP": "PIL.WebPImagePlugin",
    "PPM": "PIL.PpmImagePlugin",
    "AVIF": "PIL.AvifImagePlugin",
    "HEIF": "pillow_heif",
}
_SIGNATURES = {
    b"\xff\xd8\xff": "JPEG",
    b"\x89PNG\r\n\x1a\n": "PNG",
    b"GIF87a": "GIF",
    b"GIF89a": "GIF",
    b"II*\0": "TIFF",
    b"MM\0*": "TIFF",
    b"II+\0": "TIFF",
    b"MM\0+": "TIFF",
}
_BMP_HEADERS = {12, 16, 40, 52, 56, 64, 108, 124}  # header sizes; "BM" alone could be a text about BMW


class Reason(StrEnum):
    """Why a file cannot be used."""

    MISSING = "missing"
    SYMLINK_LOOP = "symlink-loop"
    NOT_A_FILE = "not-a-file"
    UNREADABLE = "unreadable"
    BAD_NAME = "bad-name"
    BAD_BOX = "bad-box"
    NO_CLASS = "no-class"
    DUPLICATE = "duplicate"
    CHANGED = "changed"
    EMPTY = "empty"
    NOT_AN_IMAGE = "not-an-image"
    TRUNCATED = "truncated"
    CORRUPT = "corrupt"
    TOO_LARGE = "too-large"
    UNSUPPORTED = "unsupported"


class Unusable(Exception):
    """A file cannot be used; carries a typed reason and a short detail."""

    def __init__(self, reason: Reason, detail: str) -> None:
        super().__init__(reason, detail)  # both as args, so that the exception can be pickled in a worker process
        self.reason = reason
        self.detail = " ".join(detail.split())[:200]

    def __str__(self) -> str:
        return f"{self.reason}: {self.detail}"


class _Quiet:
    """Silences warnings while any thread is decoding.

    `warnings.catch_warnings` replaces a global list: overlapping use by several threads can leave "ignore" in place for good.
    With a counter, the first thread to enter saves the filters and the last to leave restores them.
    """

    def __init__(self) -> None:
        self.lock, self.inside, self.saved = threading.Lock(), 0, warnings.catch_warnings()

    def __enter__(self) -> None:
        with self.lock:
            self.inside += 1
            if self.inside == 1:
                self.saved = warnings.catch_warnings()
                self.saved.__enter__()
                warnings.simplefilter("ignore")

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        with self.lock:
            self.inside -= 1
            if self.inside == 0:
                self.saved.__exit__(kind, error, tb)


_quiet = _Quiet()


def decode(path: Picture, short_side: int | None = None, upright: bool = True) -> np.ndarray:
    """The pixels of `decoded`, to keep."""
    with decoded(path, short_side, upright) as pixels:
        return pixels


@contextmanager
def decoded(path: Picture, short_side: int | None = None, upright: bool = True) -> Iterator[np.ndarray]:
    """Read the first frame of an image as (H, W, 3) uint8 RGB, cropped to an aspect ratio of at most MAX_ASPECT.

    Without `short_side`, a JPEG's pixels are Pillow's, as in public code. With it, a JPEG may be returned at 1/2, 1/4 or 1/8
    of its size, with no side shorter than `short_side`. upright: apply the EXIF orientation; a box always means the upright
    image. The whole file is decoded for a box, so that it takes no more memory than the file.
    Raises Unusable, and nothing else, whatever the file contains. No other large image is decoded on this machine until
    the block ends, so that it is best to make the pixels smaller in it.
    """
    if short_side is not None and short_side < 1:
        raise ValueError(f"short_side must be at least 1, not {short_side}")
    size = regular_file(path).st_size
    box = path.box if isinstance(path, Crop) else None
    with ExitStack() as turn:
        try:
            with open(path, "rb") as file, _quiet:
                pixels = _crop(_pixels(file, size, short_side, upright, box, turn))
        except OSError as error:
            raise Unusable(Reason.UNREADABLE, error.strerror or str(error)) from error
        yield pixels


def file_size(path: Picture) -> tuple[int, int]:
    """Width and height of the upright image in a file, as its header says; raises Unusable, and nothing else."""
    size = regular_file(path).st_size
    try:
        with open(path, "rb") as file, _quiet:
            image = _header(file, size)[1]
            return image.size[::-1] if _orientation(image) in SIDEWAYS else image.size
    except OSError as error:
        raise Unusable(Reason.UNREADABLE, error.strerror or str(error)) from error


def short_side(path: Picture) -> int:
    """The short side of an image or box in pixels; raises Unusable, and nothing else."""
    return int(min(*file_size(path), *(path.box[2:] if isinstance(path, Crop) else ())))


def regular_file(path: Picture) -> os.stat_result:
    """The stat of a regular, non-empty file, otherwise Unusable. Does not open the file: a named pipe would block."""
    try:
        found = os.stat(path)
    except FileNotFoundError as error:
        link = os.path.islink(path)
        raise Unusable(Reason.MISSING, "a broken symbolic link" if link else "no such file") from error
    except OSError as error:
        reason = Reason.SYMLINK_LOOP if error.errno == errno.ELOOP else Reason.UNREADABLE
        raise Unusable(reason, error.strerror or str(error)) from error
    except ValueError as error:
        raise Unusable(Reason.BAD_NAME, str(error)) from error
    if not stat.S_ISREG(found.st_mode):
        kinds = {stat.S_IFDIR: "a folder", stat.S_IFIFO: "a named pipe", stat.S_IFSOCK: "a socket"}
        raise Unusable(Reason.NOT_A_FILE, kinds.get(stat.S_IFMT(found.st_mode), "a device"))
    if not found.st_size:
        raise Unusable(Reason.EMPTY, "0 bytes")
    return found


def _header(file: BinaryIO, size: int) -> tuple[str, ImageFile.ImageFile]:
    """The kind of a file, and its image with nothing decoded yet."""
    kind = _kind(file.read(64))
    try:
        return kind, _open(file, kind)
    except Unusable:
        raise
    except Exception as error:  # Pillow's plugins raise almost anything on damaged input
        raise _failure(error, file, size, kind, opened=False) from error


def _pixels(
    file: BinaryIO, size: int, short_side: int | None, upright: bool, box: Box | None, turn: ExitStack
) -> np.ndarray:
    kind, image = _header(file, size)
    _require_plausible(image, size, kind)
    width, height = image.size
    try:
        scale, pixels = 1, None
        if kind == "JPEG" and short_side is not None:
            wide, high = (width, height) if box is None else box[2:]
            scale = scale_down(wide, high, short_side)
        needed = memory(image, file, size, kind, scale)
        if needed > MOST:
            raise Unusable(
                Reason.TOO_LARGE, f"{width} × {height} pixels need {needed / 1e9:.1f} GB to decode; make it smaller"
            )
        if needed > ORDINARY:
            turn.enter_context(one_at_a_time())
        if kind == "JPEG" and short_side is not None:
            pixels = decode_quickly(image, file, size, scale)
        if pixels is None:
            if scale > 1:
                image.draft(image.mode, (width // scale, height // scale))
            image.load()
            if kind == "PNG" and ends_early(file, size, kind):  # Pillow accepts a PNG without its last chunk
                raise Unusable(Reason.TRUNCATED, "the file ends before its IEND chunk")
            pixels = to_rgb(image, kind)
        if pixels.shape[1] < width:
            pixels = sharpen(pixels, height / scale, width / scale)
        orientation = _orientation(image) if upright or box is not None else None
        return turn_and_cut(pixels, orientation, box, (width, height), scale)
    except Unusable:
        raise
    except BadBox as error:
        raise Unusable(Reason.BAD_BOX, str(error)) from error
    except Unconvertible as error:
        raise Unusable(Reason.UNSUPPORTED, str(error)) from error
    except Exception as error:
        raise _failure(error, file, size, kind, opened=True) from error


def _require_plausible(image: ImageFile.ImageFile, size: int, kind: str) -> None:
    """Refuse an image by what its header says of its pixels."""
    width, height = image.size
    if not width * height:
        raise Unusable(Reason.CORRUPT, f"{kind}: {width} × {height} pixels")
    if width * height > MAX_PIXELS:
        raise Unusable(Reason.TOO_LARGE, f"{width} × {height} pixels, more than {MAX_PIXELS // 10**6} million")
    runs = bool(image.tile) and image.tile[0][0] == "bmp_rle"
    if runs and width * height > max(MOST_OF_RUNS, 255 * size):
        raise Unusable(Reason.CORRUPT, f"{kind}: {width} × {height} pixels in {size} bytes")


def _orientation(image: ImageFile.ImageFile) -> object:
    with suppress(Exception):  # a damaged EXIF block does not affect the pixels
        return image.getexif().get(0x0112)
    return None


def _kind(head: bytes) -> str:
    for signature, kind in _SIGNATURES.items():
        if head.startswith(signature):
            return kind
        if 3 <= len(head) < len(signature) and signature.startswith(head):
            raise Unusable(Reason.TRUNCATED, f"only the first {len(head)} bytes of a {kind} file")
    if head[:4] == b"RIFF" and b"WEBP".startswith(head[8:12]):
        return "WEBP"
    if head[:2] == b"BM" and int.from_bytes(head[14:18], "little") in _BMP_HEADERS:
        return "BMP"
    if head[:1] == b"P" and head[1:2] in b"123456" and head[2:3].isspace():
        return "PPM"
    if head[4:8] == b"ftyp":
        brands = head[8 : min(64, int.from_bytes(head[:4], "big"))]
        if b"avif" in brands or b"avis" in brands:
            return "AVIF"
        if any(brand in brands for brand in (b"heic", b"heix", b"hevc", b"heim", b"heis", b"mif1", b"msf1")):
            return "HEIF"
    raise Unusable(Reason.NOT_AN_IMAGE, f"its first bytes match none of {', '.join(_PLUGINS)}")


def _open(file: BinaryIO, kind: str) -> ImageFile.ImageFile:
    """Read the header with the plugin for this kind of file.

    The plugin is called directly, not through `Image.open`, which hides its error messages and has its own pixel limit that
    can be changed only for the whole process.
    """
    try:
        if kind != "HEIF":
            importlib.import_module(_PLUGINS[kind])
        elif (plugin := optional(_PLUGINS[kind], "heif", "HEIF")) and kind not in Image.OPEN:
            plugin.register_heif_opener()
    except ImportError as error:
        raise Unusable(Reason.UNSUPPORTED, f"{kind} is not supported by this Pillow; update it") from error
    except UsageError as error:
        raise Unusable(Reason.UNSUPPORTED, str(error)) from error
    if kind not in Image.OPEN:
        raise Unusable(Reason.UNSUPPORTED, f"this Pillow was built without {kind}")
    file.seek(0)
    return Image.OPEN[kind][0](file, "")


def _crop(pixels: np.ndarray) -> np.ndarray:
    height, width = pixels.shape[:2]
    limit = MAX_ASPECT * min(height, width)
    top, left = max(0, height - limit) // 2, max(0, width - limit) // 2
    return np.ascontiguousarray(pixels[top : top + min(height, limit), left : left + min(width, limit)])


def _failure(error: Exception, file: BinaryIO, size: int, kind: str, opened: bool) -> Unusable:
    detail = f"{kind}: {error}" if str(error) else f"{kind}: {type(error).__name__}"
    if isinstance(error, OSError) and error.errno:  # from the disk; Pillow's own OSErrors have no errno
        return Unusable(Reason.UNREADABLE, error.strerror or detail)
    if isinstance(error, MemoryError | Image.DecompressionBombError):
        return Unusable(Reason.TOO_LARGE, detail)
    if any(words in str(error).lower() for words in _CUT_OFF) or ends_early(file, size, kind):
        return Unusable(Reason.TRUNCATED, detail)
    if kind == "PPM" and not opened:  # "P6 " is a weak signature: text may begin like that
        return Unusable(Reason.NOT_AN_IMAGE, detail)
    if kind == "TIFF" and not opened:  # complete, but in a layout that Pillow has no mode for, such as float RGB
        return Unusable(Reason.UNSUPPORTED, detail)
    return Unusable(Reason.CORRUPT, detail)


class Unconvertible(ValueError):
    """The image's colours have no meaning as RGB."""


def to_rgb(image: Image.Image, kind: str) -> NDArray[np.uint8]:
    """(H, W, 3) pixels of a loaded image: transparency over white, high bit depths scaled to 8 bits.

    16-bit values are shifted right by 8, as Pillow does for 16-bit RGB, so a dark image stays darker than a bright one.
    Floats, and 32-bit integers in a TIFF, have no fixed range. Floats that all lie in 0..1 keep that range, for the same
    reason; otherwise the finite values are stretched to 0..255, and non-finite values become 0.
    """
    width, height = image.size
    rows = max(1, STRIP // width)
    boxes = [(0, top, width, min(height, top + rows)) for top in range(0, height, rows)]
    limits = None
    if image.mode == "F" or (image.mode == "I" and kind == "TIFF"):
        limits = _limits(image, boxes)
    if len(boxes) == 1:
        return np.array(_rgb(image, limits))
    pixels = np.empty((height, width, 3), np.uint8)
    for box in boxes:
        pixels[box[1] : box[3]] = np.asarray(_rgb(image.crop(box), limits))
    return pixels


def _rgb(image: Image.Image, limits: tuple[float, float] | None) -> Image.Image:
    if limits is not None:
        return Image.fromarray(_stretch(np.asarray(image), *limits)).convert("RGB")
    if image.mode.startswith("I;16") or image.mode == "I":
        return Image.fromarray((np.asarray(image).clip(0, 65535) >> 8).astype(np.uint8)).convert("RGB")
    try:
        if image.mode in ("LA", "La", "PA", "RGBA", "RGBa") or "transparency" in image.info:
            if image.mode == "La":
                image = image.convert("LA")
            image = image.convert("RGBA")
            white = Image.new("RGBA", image.size, "white")
            return Image.alpha_composite(white, image).convert("RGB")
        return image if image.mode == "RGB" else image.convert("RGB")  # convert would copy
    except ValueError as error:
        raise Unconvertible(f"colour mode {image.mode}") from error


def _limits(image: Image.Image, boxes: list[tuple[int, int, int, int]]) -> tuple[float, float]:
    """The values that become 0 and 255."""
    low, high = np.inf, -np.inf
    for box in boxes:
        values = np.asarray(image.crop(box))
        finite = values[np.isfinite(values)]
        if len(finite):
            low, high = min(low, float(finite.min())), max(high, float(finite.max()))
    if low > high:
        raise Unconvertible("no pixel has a finite value")
    return (0.0, 1.0) if image.mode == "F" and low >= 0 and high <= 1 else (low, high)


def _stretch(values: NDArray[np.generic], low: float, high: float) -> NDArray[np.uint8]:
    scaled = np.where(np.isfinite(values), values, low).astype(np.float64) - low
    return (scaled * (255 / (high - low) if high > low else 0.0)).round().astype(np.uint8)
