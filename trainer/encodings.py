"""Column encodings of MDS: decoders `(sample bytes, offset, length) -> value`, without needless copies."""

import io
import json
import struct
from collections.abc import Callable
from typing import Any

import numpy as np

from trainer.errors import TrainerError

Decoder = Callable[[bytes, int, int], Any]

_SHAPE_DTYPES = tuple(np.dtype(kind) for kind in ("uint8", "uint16", "uint32", "uint64"))
_VALUE_DTYPES = {
    8: "uint8", 9: "int8", 16: "uint16", 17: "int16", 18: "float16", 32: "uint32", 33: "int32", 34: "float32",
    64: "uint64", 65: "int64", 66: "float64",
}  # fmt: skip
_SCALARS = tuple(_VALUE_DTYPES.values())


def _text(data: bytes, at: int, length: int) -> str:
    return data[at : at + length].decode()


def _image(data: bytes, at: int, length: int) -> object:
    from PIL import Image  # noqa: PLC0415 - only where a column holds compressed images

    return Image.open(io.BytesIO(data[at : at + length]))


_PLAIN: dict[str, Decoder] = {
    "bytes": lambda data, at, length: data[at : at + length],
    "str": _text,
    "int": lambda data, at, _: struct.unpack_from("<q", data, at)[0],
    "str_int": lambda data, at, length: int(_text(data, at, length)),
    "str_float": lambda data, at, length: float(_text(data, at, length)),
    "json": lambda data, at, length: json.loads(data[at : at + length]),
    "jpeg": _image,
    "png": _image,
}


def decoder(encoding: str) -> Decoder:
    """The decoder of a column; unsafe (pickle) and unknown encodings are refused."""
    if encoding in _PLAIN:
        return _PLAIN[encoding]
    if encoding in _SCALARS:
        kind = np.dtype(encoding)
        return lambda data, at, _: np.frombuffer(data, kind, 1, at)[0]
    if encoding == "ndarray" or encoding.startswith("ndarray:"):
        dtype, shape = _array(encoding)
        return _array_decoder(dtype, shape)
    allowed = f"{', '.join(_PLAIN)}, ndarray[:dtype[:shape]] or a numpy scalar type"
    raise TrainerError("column encoding", encoding, allowed, "write the column with one of these encodings")


def fixed_size(encoding: str) -> int | None:
    """Bytes of a column whose size is not stored per sample."""
    if encoding == "int":
        return 8
    if encoding in _SCALARS:
        return np.dtype(encoding).itemsize
    if encoding.startswith("ndarray:"):
        dtype, shape = _array(encoding)
        return None if dtype is None or shape is None else int(np.prod(shape)) * dtype.itemsize
    return None


def _array(encoding: str) -> tuple[np.dtype | None, tuple[int, ...] | None]:
    parts = encoding.split(":")[1:]
    dtype = np.dtype(parts[0]) if parts and parts[0] else None
    shape = tuple(int(size) for size in parts[1].split(",")) if len(parts) > 1 else None
    return dtype, shape


def _array_decoder(dtype: np.dtype | None, shape: tuple[int, ...] | None) -> Decoder:
    if dtype is not None and shape is not None:
        count = int(np.prod(shape))
        return lambda data, at, _: np.frombuffer(data, dtype, count, at).reshape(shape)

    def decode(data: bytes, at: int, length: int) -> np.ndarray:
        end, kind, sizes = at + length, dtype, shape
        if kind is None:
            kind = np.dtype(_VALUE_DTYPES[data[at]])
            at += 1
        if sizes is None:
            ndim, width = data[at] >> 2, _SHAPE_DTYPES[data[at] & 3]
            sizes = tuple(np.frombuffer(data, width, ndim, at + 1).tolist())
            at += 1 + ndim * width.itemsize
        return np.frombuffer(data, kind, (end - at) // kind.itemsize, at).reshape(sizes)

    return decode
