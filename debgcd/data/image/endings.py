"""Detect truncated image files: does a file end before its own structure says it should?"""

import struct
from typing import Any, BinaryIO

_TIFF_SIZES = {3: 2, 4: 4, 5: 8, 8: 2, 9: 4, 10: 8, 11: 4, 12: 8}  # bytes per value by type; 1 for all others


def ends_early(file: BinaryIO, size: int, kind: str) -> bool:
    """Whether the file is shorter than its container states; False for formats that do not state it."""
    walk = _ENDS.get(kind)
    try:
        return walk is not None and walk(file, size) > size
    except (struct.error, OSError):  # ran out of bytes while reading the structure
        return True


def _read(file: BinaryIO, form: str, at: int) -> tuple[Any, ...]:
    file.seek(at)
    return struct.unpack(form, file.read(struct.calcsize(form)))


def _png(file: BinaryIO, size: int) -> int:
    at, chunk = 8, b""
    while chunk != b"IEND":
        length, chunk = _read(file, ">I4s", at)
        at += length + 12
    return at


def _jpeg(file: BinaryIO, size: int) -> int:
    return size if _read(file, "2s", size - 2) == (b"\xff\xd9",) else size + 1


def _gif(file: BinaryIO, size: int) -> int:
    return size if _read(file, "1s", size - 1) == (b";",) else size + 1


def _bmp(file: BinaryIO, size: int) -> int:
    return _read(file, "<I", 2)[0]


def _webp(file: BinaryIO, size: int) -> int:
    return _read(file, "<I", 4)[0] + 8


def _boxes(file: BinaryIO, size: int) -> int:
    """HEIF and AVIF: top-level boxes with a 32-bit length each."""
    at = 0
    while at < size:
        (length,) = _read(file, ">I", at)
        if length < 8:  # 0 means "to the end of the file", 1 means "a 64-bit length follows"
            return size
        at += length
    return at


def _tiff(file: BinaryIO, size: int) -> int:
    order = "<" if _read(file, "2s", 0) == (b"II",) else ">"
    magic, directory = _read(file, order + "HI", 2)
    if magic != 42:  # BigTIFF has a different layout
        return size
    (entries,) = _read(file, order + "H", directory)
    first, end = directory + 2, directory + 2 + 12 * entries
    for at in range(first, min(end, size), 12):
        _, form, count, value = _read(file, order + "HHII", at)
        length = count * _TIFF_SIZES.get(form, 1)
        if length > 4:  # then `value` is the offset of the values
            end = max(end, value + length)
    return end


_ENDS = {
    "PNG": _png,
    "JPEG": _jpeg,
    "GIF": _gif,
    "BMP": _bmp,
    "WEBP": _webp,
    "HEIF": _boxes,
    "AVIF": _boxes,
    "TIFF": _tiff,
}
