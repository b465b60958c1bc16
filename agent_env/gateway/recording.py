"""The record of one model call, from its first byte to the line on disk."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from agent_env.context import new_call_id
from agent_env.episodes import CallRecord
from agent_env.episodes.records import check_fields
from agent_env.errors import AgentEnvError, InvalidArguments, ProtocolError
from agent_env.gateway.capture import NO_ANSWER, StreamCapture, note_missing
from agent_env.gateway.dialects import CHAT, Dialect
from agent_env.gateway.dialects.contract import choices_of, first_choice
from agent_env.gateway.http import dump_read
from agent_env.gateway.journal import Journal
from agent_env.gateway.prompts import add_prompt
from agent_env.gateway.retries import Try
from agent_env.gateway.upstream import Endpoint

MOST_CHOICES = 128
"""How many choices of one answer are recorded; each has its prompt's tokens."""


class Recording:
    """What is recorded of a call that the server was asked in the dialect `asked_in`.

    `first` is its record. An answer of several choices makes one of each, which go to disk together with the first.
    `version` is the policy's, where the answer tells none; `attempt` is told whether the call failed.
    """

    def __init__(
        self, first: CallRecord, journal: Journal, attempt: Try, asked_in: Dialect, *, tokens: bool, version: Any
    ) -> None:
        self.first = first
        self.kept = False
        self._others: list[CallRecord] = []
        self._journal = journal
        self._attempt = attempt
        self._dialect = asked_in
        self._tokens = tokens
        self._version = version
        self._begun = time.monotonic()

    def take(self, response: dict[str, Any], *, keep_logprobs: bool) -> None:
        """Takes an answer in its unstreamed form apart; raises `ProtocolError` for what is none."""
        first = self.first
        usage = response.get("usage")
        several = choices_of(response)
        if first.upstream_api is not None and (len(several) > 1 or not _told(several[0])):
            raise self.no_answer()  # an answer in another dialect is its first choice, and has none beside it
        if len(several) > MOST_CHOICES:
            raise ProtocolError(
                f"the model's server answered with {len(several)} choices, and at most {MOST_CHOICES} are recorded; "
                "ask for fewer at a time"
            )
        # The request is told once: it may be long.
        self._others = [
            replace(first, call_id=new_call_id(), choice_of=first.call_id, request=None) for _ in several[1:]
        ]
        try:
            for record, choice in zip([first, *self._others], several, strict=True):
                self._dialect.capture(record, choice, keep_logprobs=keep_logprobs)
                if self._others:
                    record.usage = usage if record is first else None  # the server counts them all together
                check_fields(record)
        except (*NO_ANSWER, ProtocolError):
            # A record that could not be read again would cost the whole episode.
            self._others = []
            first.prompt_token_ids = first.token_ids = first.logprobs = first.usage = first.finish_reason = None
            raise self.no_answer() from None
        for record in (first, *self._others):
            note_missing(record, asked=self._tokens, tellable=self._dialect.tells, alone=not self._others)

    def take_came(self, whole: StreamCapture) -> None:
        """Takes what came of a stream that broke off, where its parts make an answer."""
        if self.first.response is None:
            self.first.response = came(whole)

    async def complete(self, endpoint: Endpoint | None, sent: bytes) -> None:
        """Asks for the prompt's tokens where the answer told those that were sampled and not these."""
        if endpoint is None or not self._tokens or self._dialect is not CHAT:
            return
        first, told = self.first, self.first.prompt_token_ids
        await add_prompt(first, endpoint, sent)
        if first.prompt_token_ids is not told:
            for record in self._others:
                record.prompt_token_ids = first.prompt_token_ids
                record.missing = {**(record.missing or {}), "prompt_token_ids": "asked_apart"}

    async def keep(self, error: AgentEnvError | None = None, *, status: str | None = None) -> None:
        """Puts the call on disk, once: what fails afterwards is not the model's."""
        if self.kept:
            return
        self.kept = True
        self._attempt.failed = error is not None
        records = [self.first, *self._others]
        seconds = time.monotonic() - self._begun
        for record in records:
            record.seconds = seconds
            if record.policy_version is None:
                record.policy_version = self._version
            if error is not None:
                _tell(record, error, status)
        await self._journal.append(self.first.episode or "", [_line(record) for record in records])

    def no_answer(self) -> ProtocolError:
        """The error for an answer that is not of the dialect's form."""
        return ProtocolError(f"the model's server answered with what is no {self._dialect.what}")


def _told(response: Mapping[str, Any]) -> bool:
    """Whether the one choice of an answer is the one that a translation tells."""
    choice = first_choice(response)
    return choice is None or choice.get("index", 0) == 0


def came(whole: StreamCapture) -> dict[str, Any] | None:
    """The answer as far as its stream came; None where its parts make none."""
    try:
        return whole.finish()
    except NO_ANSWER:
        return None


def _line(record: CallRecord) -> bytes:
    try:
        line = dump_read(record.to_json())
    except InvalidArguments as unwritable:
        record.request = record.response = record.usage = None
        record.policy_version = record.policy_version_end = None
        _tell(record, ProtocolError(unwritable.message), None)
        line = dump_read(record.to_json())
    return line + b"\n"


def _tell(record: CallRecord, error: AgentEnvError, status: str | None) -> None:
    record.status = status or error.code
    record.error = {"code": record.status, "message": error.message}


def number_of(value: Any) -> float | None:
    """The number that a request gives, None for what is none."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return float(value)
    except OverflowError:
        return None  # a whole number beyond what a float holds: the server may say what it thinks of it
