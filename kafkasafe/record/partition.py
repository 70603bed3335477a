"""Chooses the partition for a key by Kafka's murmur2 hash, as other clients do.

kafka-python, the Java client and librdkafka's `murmur2` partitioner choose the same partition for a key. So all records
of one key are in one partition, regardless of the client that sends them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

_SEED: Final = 0x9747B28C
_M: Final = 0x5BD1E995
_R: Final = 24
_UINT32: Final = 0xFFFFFFFF
_POSITIVE: Final = 0x7FFFFFFF

_WORD_BYTES: Final = 4
_INT16_MAX: Final = 0x7FFF
_FEW: Final = 24  # up to this number of keys, a loop costs less than numpy's fixed cost


def murmur2(key: bytes) -> int:
    """Kafka's 32-bit murmur2 of the key, as an unsigned number."""
    size = len(key)
    whole = size - size % _WORD_BYTES
    h = _SEED ^ size
    for at in range(0, whole, _WORD_BYTES):
        k = int.from_bytes(key[at : at + _WORD_BYTES], "little") * _M & _UINT32
        k = (k ^ k >> _R) * _M & _UINT32
        h = (h * _M & _UINT32) ^ k
    if whole != size:
        h = (h ^ int.from_bytes(key[whole:], "little")) * _M & _UINT32
    h = (h ^ h >> 13) * _M & _UINT32
    return h ^ h >> 15


def partition_for_key(key: bytes, n: int) -> int:
    """The partition of a key, 0 … n - 1, as kafka-python's DefaultPartitioner chooses it."""
    return (murmur2(key) & _POSITIVE) % n


def partitions_for_keys(keys: Sequence[bytes], n: int, size: int | None = None) -> npt.NDArray[np.int64]:
    """`partition_for_key` of each key.

    Args:
        keys: The keys.
        n: Number of partitions of the topic, ≥ 1.
        size: Size of each key, if all sizes are equal; None if the sizes differ.
    """
    if len(keys) <= _FEW:
        return np.array([partition_for_key(key, n) for key in keys], np.int64)
    data = b"".join((*keys, bytes(_WORD_BYTES)))
    if size is not None:
        return _partitions_of_one_size(data, size, len(keys), n)
    sizes = np.array(list(map(len, keys)), np.int64)
    return _partitions(data, np.cumsum(sizes) - sizes, sizes, n)


def partitions_for_buffer(
    data: bytes | memoryview, offsets: npt.NDArray[np.int64], n: int
) -> npt.NDArray[np.int64]:
    """`partition_for_key` of each key in a buffer.

    Args:
        data: The keys.
        offsets: Key *i* is the bytes from `offsets[i]` to `offsets[i + 1]`; there is one more offset than keys.
        n: Number of partitions of the topic, ≥ 1.
    """
    begin = int(offsets[0])
    with memoryview(data) as view:
        padded = bytes(view[begin : int(offsets[-1])]) + bytes(_WORD_BYTES)
    return _partitions(padded, offsets[:-1] - begin, np.diff(offsets), n)


def _partitions(
    data: bytes, at: npt.NDArray[np.int64], sizes: npt.NDArray[np.int64], n: int
) -> npt.NDArray[np.int64]:
    """The partitions of the keys in `data`. Key *i* begins at `at[i]` and has `sizes[i]` bytes. `data` is padded: at
    least one whole word follows the last key.
    """
    # The little-endian word that begins at each byte, aligned or not.
    words = np.ndarray((len(data) - _WORD_BYTES + 1,), np.dtype("<u4"), data, strides=(1,))
    counts = sizes // _WORD_BYTES
    most = int(counts.max(initial=0))
    least = int(counts.min(initial=most))
    order = None
    if most != least:
        # Sort the longest keys first, so that a slice at the front selects the keys that have a further word. Sort by
        # 16-bit numbers if possible, which is cheapest.
        missing = most - counts
        order = np.argsort(missing.astype(np.int16) if most <= _INT16_MAX else missing, kind="stable")
        at, sizes, counts = at[order], sizes[order], counts[order]
    h = _SEED ^ sizes.astype(np.uint32)
    for word in range(most):
        some = slice(None if word < least else int(np.searchsorted(most - counts, most - word, side="left")))
        k = words[at[some] + _WORD_BYTES * word] * _M
        k = (k ^ k >> _R) * _M
        h[some] = h[some] * _M ^ k
    tails = sizes % _WORD_BYTES
    rest = np.flatnonzero(tails)
    masks = (np.uint32(1) << (8 * tails[rest]).astype(np.uint32)) - np.uint32(1)
    h[rest] = (h[rest] ^ words[(at + counts * _WORD_BYTES)[rest]] & masks) * _M
    found = _finished(h.astype(np.uint32, copy=False), n)
    if order is not None:
        found[order] = found.copy()
    return found


def _partitions_of_one_size(data: bytes, size: int, count: int, n: int) -> npt.NDArray[np.int64]:
    """Return the partitions of `count` keys of `size` bytes each. `data` is padded as for `_partitions`.

    Because all keys have the same size, the first words of all keys form one column of the buffer, the second words
    another column, and so on. So the function need not gather words one by one.
    """

    def column(at: int) -> npt.NDArray[np.uint32]:
        return np.ndarray((count,), np.dtype("<u4"), data, at, (size,))

    whole = size - size % _WORD_BYTES
    h = np.full(count, _SEED ^ size, np.uint32)
    for at in range(0, whole, _WORD_BYTES):
        k = (column(at) * _M).astype(np.uint32, copy=False)
        k ^= k >> _R
        k *= _M
        h *= _M
        h ^= k
    if whole != size:
        h ^= column(whole) & np.uint32((1 << 8 * (size - whole)) - 1)
        h *= _M
    return _finished(h, n)


def _finished(h: npt.NDArray[np.uint32], n: int) -> npt.NDArray[np.int64]:
    """Apply the last steps of murmur2 to the hashes `h`, and return the keys' partitions. Changes `h` in place."""
    h ^= h >> 13
    h *= _M
    h ^= h >> 15
    return (h & _POSITIVE).astype(np.int64) % n
