"""The codecs of Kafka's batches, with the framing that Kafka's clients expect."""

from __future__ import annotations

import struct
import zlib
from typing import Any, Final, cast

from kafkasafe.packages import pyarrow_for
from kafkasafe.record.batch.header import LENGTH, Buffer, Compression, CorruptBatchError

_MIN_READ_BYTES: Final = 64 * 1024


_XERIAL_HEADER: Final = b"\x82SNAPPY\0\0\0\0\1\0\0\0\1"
_XERIAL_MAGIC_BYTES: Final = 8
_XERIAL_BLOCK_BYTES: Final = 32 * 1024
_SNAPPY_MAX_RATIO: Final = 32  # upper bound: snappy's densest element turns 3 bytes into 64, a factor of 21

_LZ4_MAGIC: Final = b"\x04\x22\x4d\x18"
# Header of an LZ4 frame: version 01 with independent blocks (Kafka's reader refuses linked blocks), the block size, and
# the header's checksum, which is a constant for each block size. Use the smallest block size that fits the batch,
# because a reader allocates memory for a whole block.
_LZ4_FRAMES: Final = (
    (1 << 16, _LZ4_MAGIC + b"\x60\x40\x82"),
    (1 << 18, _LZ4_MAGIC + b"\x60\x50\xfb"),
    (1 << 20, _LZ4_MAGIC + b"\x60\x60\x51"),
    (1 << 22, _LZ4_MAGIC + b"\x60\x70\x73"),
)
_LZ4_BLOCK: Final = struct.Struct("<I")
_LZ4_STORED: Final = 1 << 31
_LZ4_END: Final = bytes(4)

_CODECS: Final = {
    Compression.GZIP: "gzip",
    Compression.SNAPPY: "snappy",
    Compression.LZ4: "lz4_raw",
    Compression.ZSTD: "zstd",
}
# Kafka's default level for zstd; pyarrow's default is 1.
_DEFAULT_LEVELS: Final = {Compression.ZSTD: 3}
_GZIP_WINDOW: Final = 31  # the largest window, with gzip's header and trailer


def load_codec(compression: Compression) -> None:
    """Import the package that `encode` needs for this compression.

    A producer calls this function before its threads start, so that the thread that encodes the first compressed batch
    does not have to import the package.
    """
    if compression not in {Compression.NONE, Compression.GZIP}:
        _arrow()


def _arrow() -> Any:
    """pyarrow, which has the codecs. Importing pyarrow takes 22 MB of memory, so only compressed batches cause the
    import.

    Raises:
        MissingPackageError: pyarrow is not installed.
    """
    return pyarrow_for("Compression with snappy, lz4 or zstd")


def compress(body: Buffer, compression: Compression, level: int | None) -> bytes:
    name = _CODECS[compression]
    level = _DEFAULT_LEVELS.get(compression) if level is None else level
    if level is not None and compression is not Compression.SNAPPY:
        lowest = _arrow().Codec.minimum_compression_level(name)
        highest = _arrow().Codec.maximum_compression_level(name)
        if not lowest <= level <= highest:
            raise ValueError(
                f"Compression level {level} of {compression.name} does not exist: use {lowest} … {highest}"
            )
    match compression:
        case Compression.GZIP:
            gzip = zlib.compressobj(-1 if level is None else level, zlib.DEFLATED, _GZIP_WINDOW)
            return gzip.compress(body) + gzip.flush()
        case Compression.SNAPPY:
            return _compress_snappy(body)
        case Compression.LZ4:
            return _compress_lz4(body, _arrow().Codec(name, compression_level=level))
        case _:
            # Without asbytes, pyarrow returns a Buffer that it has shrunk, but a memoryview of the Buffer still has the
            # length before shrinking.
            return cast("bytes", _arrow().Codec(name, compression_level=level).compress(body, asbytes=True))


def _compress_snappy(body: Buffer) -> bytes:
    """Compresses with Xerial's framing, which Kafka's Java clients write. Java clients also read raw blocks, but other
    clients do not.
    """
    codec = _arrow().Codec("snappy")
    pieces: list[Buffer] = [_XERIAL_HEADER]
    for start in range(0, len(body), _XERIAL_BLOCK_BYTES):
        block = codec.compress(body[start : start + _XERIAL_BLOCK_BYTES], asbytes=True)
        pieces += (LENGTH.pack(len(block)), block)
    return b"".join(pieces)


def _compress_lz4(body: Buffer, codec: Any) -> bytes:
    """Makes an LZ4 frame of independent blocks. (In pyarrow's own frames, the blocks are linked.)"""
    block_bytes, frame_header = next((f for f in _LZ4_FRAMES if len(body) <= f[0]), _LZ4_FRAMES[-1])
    pieces: list[Buffer] = [frame_header]
    for start in range(0, len(body), block_bytes):
        plain = body[start : start + block_bytes]
        block = codec.compress(plain, asbytes=True)
        if len(block) < len(plain):
            pieces += (_LZ4_BLOCK.pack(len(block)), block)
        else:
            pieces += (_LZ4_BLOCK.pack(len(plain) | _LZ4_STORED), plain)
    pieces.append(_LZ4_END)
    return b"".join(pieces)


def decompress(stored: bytes, compression: Compression, limit: int) -> bytes:
    """Decompress the records section, but not more than `limit` bytes, regardless of the size that `stored` claims."""
    if not stored:
        return b""  # compaction has removed all records of the batch
    errors = _codec_errors(compression)
    try:
        match compression:
            case Compression.NONE:
                body = stored
            case Compression.GZIP:
                body = _decompress_gzip(stored, limit)
            case Compression.SNAPPY:
                body = _decompress_snappy(stored, limit)
            case _:
                body = _decompress_stream(stored, compression.name.lower(), limit)
    except errors as error:
        raise CorruptBatchError(
            f"The records cannot be decompressed ({compression.name}): {error}"
        ) from error
    if len(body) > limit:
        raise CorruptBatchError(f"The records are larger than {limit} bytes when decompressed")
    return body


def _codec_errors(compression: Compression) -> tuple[type[Exception], ...]:
    if compression in {Compression.NONE, Compression.GZIP}:
        return (zlib.error,)
    return (OSError, _arrow().ArrowException)


def _decompress_gzip(stored: bytes, limit: int) -> bytes:
    pieces = []
    rest = stored
    left = limit + 1
    while rest and left:
        member = zlib.decompressobj(_GZIP_WINDOW)
        pieces.append(member.decompress(rest, left))
        left -= len(pieces[-1])
        if left and not member.eof:
            raise CorruptBatchError("The records cannot be decompressed (GZIP): truncated")
        rest = member.unused_data
    return b"".join(pieces)


def _decompress_stream(stored: bytes, codec: str, limit: int) -> bytes:
    pieces = []
    left = limit + 1
    step = max(_MIN_READ_BYTES, 4 * len(stored))
    with _arrow().CompressedInputStream(_arrow().BufferReader(stored), codec) as stream:
        while left and (piece := stream.read(min(step, left))):
            pieces.append(piece)
            left -= len(piece)
    return b"".join(pieces)


def _decompress_snappy(stored: bytes, limit: int) -> bytes:
    if stored[:_XERIAL_MAGIC_BYTES] != _XERIAL_HEADER[:_XERIAL_MAGIC_BYTES]:
        return _decompress_snappy_block(stored, limit)
    pieces = []
    left = limit
    at = len(_XERIAL_HEADER)
    while at < len(stored):
        size = int.from_bytes(stored[at : at + LENGTH.size], "big")
        at += LENGTH.size
        if size > len(stored) - at:
            raise CorruptBatchError(f"A snappy block of {size} bytes, {max(0, len(stored) - at)} are there")
        pieces.append(_decompress_snappy_block(stored[at : at + size], left))
        left -= len(pieces[-1])
        at += size
    return b"".join(pieces)


def _decompress_snappy_block(block: bytes, limit: int) -> bytes:
    """Decompresses one raw block, which begins with a varint of the decompressed size."""
    size = 0
    for index, byte in enumerate(block[:5]):
        size |= (byte & 0x7F) << 7 * index
        if byte < 0x80:
            break
    if size > min(limit, len(block) * _SNAPPY_MAX_RATIO):
        raise CorruptBatchError(f"A snappy block of {len(block)} bytes that claims to hold {size}")
    return cast("bytes", _arrow().Codec("snappy").decompress(block, size, asbytes=True))
