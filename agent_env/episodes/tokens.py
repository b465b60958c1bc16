"""What a token id is, for whoever takes some from others."""

from __future__ import annotations

from typing import Any, TypeGuard

LARGEST_TOKEN_ID = 2**31 - 1
"""The largest id that an embedding takes which counts with 32 bits; vocabularies are far smaller."""


def are_token_ids(told: Any) -> TypeGuard[list[int]]:
    """Tells whether this is a list of token ids: whole numbers from 0 to `LARGEST_TOKEN_ID`, and none of them a truth
    value."""
    if not isinstance(told, list) or not all(
        issubclass(kind, int) and kind is not bool for kind in set(map(type, told))
    ):
        return False
    return not told or (min(told) >= 0 and max(told) <= LARGEST_TOKEN_ID)
