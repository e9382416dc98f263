"""Which split a problem belongs to: a function of what is computed, not of the words around it.

Two problems that compute the same sequence of operations on the same numbers always fall into the same split, so no
split repeats another's questions, nor another's computation in other words.
"""

from __future__ import annotations

from hashlib import blake2b

BUCKETS = 100
TUNING = range(80, 90)
TEST = range(90, 100)


def split_of(operations: tuple[str, ...]) -> str:
    digest = blake2b(";".join(operations).encode(), digest_size=8).digest()
    bucket = int.from_bytes(digest, "big") % BUCKETS
    if bucket in TEST:
        return "test"
    return "tuning" if bucket in TUNING else "train"
