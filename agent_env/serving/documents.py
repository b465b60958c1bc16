"""Documents that clients ask for again and again, such as cards: sent once, then "not modified"."""

from __future__ import annotations

import hashlib

from starlette.requests import Request
from starlette.responses import Response


def entity_tag(content: bytes) -> str:
    """The entity tag of a document: another one for every other content (RFC 9110 §8.8.3)."""
    return f'"{hashlib.sha256(content).hexdigest()[:32]}"'


def answer_document(request: Request, content: bytes, tag: str, *, vary: str | None = None) -> Response:
    """Answers with a JSON document, or with 304 to a client that has it already (RFC 9110 §13.1.2).

    The client may keep it and asks each time whether it changed; `vary` names the headers that it depends on.
    """
    headers = {"ETag": tag, "Cache-Control": "no-cache"} | ({} if vary is None else {"Vary": vary})
    known = {one.strip().removeprefix("W/") for one in request.headers.get("if-none-match", "").split(",")}
    if tag in known or "*" in known:
        return Response(status_code=304, headers=headers)
    return Response(content, media_type="application/json", headers=headers)
