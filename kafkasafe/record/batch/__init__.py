"""Encodes columns as a RecordBatch v2 (KIP-98), and decodes it, without I/O.

The producer encodes a batch once, into one bytearray. After that, only two functions change the bytes: `stamp_identity`
writes the producer id, epoch and sequence (and computes the CRC again), and `stamp_address` writes the two fields that
Kafka's CRC leaves out. Layout of the 61-byte header, big-endian:

    0 baseOffset int64 | 8 batchLength int32 | 12 partitionLeaderEpoch int32 | 16 magic int8 | 17 crc uint32
    21 attributes int16 | 23 lastOffsetDelta int32 | 27 baseTimestamp int64 | 35 maxTimestamp int64
    43 producerId int64 | 51 producerEpoch int16 | 53 baseSequence int32 | 57 count int32

The CRC32C covers all bytes from byte 21 on. After the header come the records, uncompressed or compressed as one block.
Each record is

    length | attributes 0 | timestampDelta | offsetDelta | key | value | headers

with zigzag varints for all numbers, and -1 as the length of a null key or value.
"""

from kafkasafe.record.batch.compression import load_codec
from kafkasafe.record.batch.decoding import Columns, decode
from kafkasafe.record.batch.encoding import Sizes, encode, encode_control, frame, sizes_of, varint
from kafkasafe.record.batch.header import (
    HEADER_BYTES,
    MAX_BODY_BYTES,
    RECORD_OVERHEAD,
    BatchHeader,
    Buffer,
    Compression,
    CorruptBatchError,
    crc_and_count,
    fill_header,
    identity_of,
    iter_headers,
    last_header,
    read_header,
    stamp_address,
    stamp_identity,
    verify,
)
from kafkasafe.record.batch.markers import is_abort

__all__ = [
    "HEADER_BYTES",
    "MAX_BODY_BYTES",
    "RECORD_OVERHEAD",
    "BatchHeader",
    "Buffer",
    "Columns",
    "Compression",
    "CorruptBatchError",
    "Sizes",
    "crc_and_count",
    "decode",
    "encode",
    "encode_control",
    "fill_header",
    "frame",
    "identity_of",
    "is_abort",
    "iter_headers",
    "last_header",
    "load_codec",
    "read_header",
    "sizes_of",
    "stamp_address",
    "stamp_identity",
    "varint",
    "verify",
]
