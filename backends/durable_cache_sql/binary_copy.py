"""How samples are written in PostgreSQL's binary COPY format; pure."""

from __future__ import annotations

import struct
from typing import Any, cast

from durable_cache_sql.database import SAMPLE_COLUMNS, Columns

COPY = f"COPY dc_samples ({', '.join(SAMPLE_COLUMNS)}) FROM STDIN (FORMAT binary)"  # our own names
BEGIN = b"PGCOPY\n\xff\r\n\x00" + bytes(8)
END = struct.pack(">h", -1)
_ROW = struct.Struct(">hiqiqiqihi?ihiqiqiqiqiqi16si")
"""A row of `SAMPLE_COLUMNS` up to the length of its payload, each field after its length."""
_LENGTH = struct.Struct(">i")
_NULL = _LENGTH.pack(-1)


def packed(columns: Columns) -> bytes:
    """Return samples given as `SAMPLE_COLUMNS`, to be sent between `BEGIN` and `END`."""
    given = cast("list[list[Any]]", columns)
    numbers, (digests, payloads, attachments) = given[:-3], given[-3:]
    pieces: list[bytes] = []
    add = pieces.append
    pack, length = _ROW.pack, _LENGTH.pack
    for row, digest, payload, attachment in zip(
        zip(*numbers, strict=True), digests, payloads, attachments, strict=True
    ):
        stream, sn, storage, kind, stamped, qos, encoding, stamp, seconds, fraction, received = row
        add(
            pack(
                *(len(SAMPLE_COLUMNS), 8, stream, 8, sn, 8, storage, 2, kind, 1, stamped, 2, qos),
                *(8, encoding, 8, stamp, 8, seconds, 8, fraction, 8, received),
                *(16, digest, len(payload)),
            )
        )
        add(payload)
        if attachment is None:
            add(_NULL)
        else:
            add(length(len(attachment)))
            add(attachment)
    return b"".join(pieces)
