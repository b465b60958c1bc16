"""The peers of a copied conversation: each goes on from what it remembers, or says why it cannot."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence

from agent_env.context import Peer
from agent_env.errors import AgentEnvError, DeadlineExceeded

log = logging.getLogger("agent_env.runtime")

ALL_AFRESH = "peers of this kind cannot copy a conversation"


async def forked(
    peers: Sequence[Peer] | None, agent: str, seconds: float | None
) -> tuple[Sequence[Peer] | None, Mapping[str, str]]:
    """The peers of the copy, and why each of those that begin afresh does, by seat.

    None stands for peers that were not opened yet, or are opened anew at the copy's first turn. Raises
    `DeadlineExceeded`, `NeedUnmet` or what else a peer that is opened raises; none is left open then.
    """
    if not peers:
        return peers, {}
    copies: list[Peer] = []
    try:
        async with asyncio.timeout(seconds):
            for peer in peers:
                if peer.fork is None:
                    break
                copies.append(await peer.fork())
            else:
                return copies, {copy.seat: copy.afresh for copy in copies if copy.afresh is not None}
    except BaseException as error:
        await _close(copies)
        if isinstance(error, TimeoutError):
            raise DeadlineExceeded(
                f"the peers of {agent} did not copy the conversation before the deadline; allow more time"
            ) from None
        raise
    await _close(copies)
    return None, {peer.seat: ALL_AFRESH for peer in peers}


async def _close(peers: Sequence[Peer]) -> None:
    for peer in peers:
        try:
            await peer.aclose()
        except AgentEnvError:
            log.warning("the session with the peer %s was not released", peer.name, exc_info=True)
