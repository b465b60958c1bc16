"""Makes golden.jsonl: one small tree of every kind of call that trainers must be handed rightly.

    python tests/training/exports/make_golden.py

Tokens are words, numbered in the order of their appearance, so that the file can be read by hand.
"""

from __future__ import annotations

from itertools import count
from pathlib import Path
from typing import Any

from agent_env.episodes import CallRecord, EdgeRecord, Episode, EpisodeWriter, RewardRecord, TurnRecord
from agent_env.errors import AgentFailed, DeadlineExceeded

GOLDEN = Path(__file__).parent / "golden.jsonl"
RUN = "golden"

WORDS: dict[str, int] = {}


def ids(text: str) -> list[int]:
    return [WORDS.setdefault(word, 100 + len(WORDS)) for word in text.split()]


class Play:
    """An episode that is being made up; `tick` is its clock, half a second a record."""

    def __init__(self, name: str, group: str, task: str, env: str) -> None:
        self.episode = Episode(name, task=task, group=group, run=RUN, env=env, seed=7, started=1000.0, seconds=8.0)
        self._clock = count(2000)

    def tick(self) -> float:
        return next(self._clock) / 2

    def turn(self, name: str, seat: str, session: str, asked: str, said: str | None, **fields: Any) -> None:
        """A turn, and the edge that led to it from the turn `parent_call_id`."""
        failed = said is None
        error = {"code": "agent_failed", "message": "the tool is gone"} if failed else None
        status, agent = "agent_failed" if failed else "ok", f"{seat}@1.0.0"
        parent = fields.get("parent_call_id")
        started = self.tick()
        turn = TurnRecord(
            name, agent, session, self.episode.id, seat=seat, request=asked, reply=said, status=status, error=error,
            started=started, seconds=1.0, stop=None if failed else "end_turn", **fields,
        )  # fmt: skip
        edge = EdgeRecord(
            f"edge-{name}", agent, self.episode.id, caller=None if parent is None else "manager@1.0.0",
            caller_seat=None if parent is None else "manager", caller_call_id=parent, callee_seat=seat,
            callee_call_id=name, protocol="inprocess", request=asked, reply=said, status=status, error=error,
            started=started, seconds=1.0,
        )  # fmt: skip
        self.episode.add([turn, edge])

    def call(
        self, name: str, turn: str, seat: str, policy: str, messages: list[dict[str, Any]], told: str, said: str,
        *, version: int = 3, temperature: float | None = 0.7, answer: dict[str, Any] | None = None, **fields: Any,
    ) -> None:  # fmt: skip
        """A model call: the whole prompt in `told`, the answer in `said`; None leaves the temperature to the server."""
        prompt, sampled = ids(told), ids(said)
        asked = {} if temperature is None else {"temperature": temperature}
        request: dict[str, Any] = {"model": "m", "messages": messages, **asked}
        message = answer or {"role": "assistant", "content": said}
        shape: dict[str, Any] = {"response": {"id": f"r-{name}", "choices": [{"index": 0, "message": message}]}}
        if fields.get("api") == "messages":
            request |= {"system": "weigh", "max_tokens": 8}
            shape = {"response": {"role": "assistant", "content": [{"type": "text", "text": said}]}}
        elif fields.get("api") == "responses":
            request = {"model": "m", "input": messages[0]["content"], **asked}
            output = [{"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": said}]}]
            shape = {"response": {"id": f"r-{name}", "output": output}}
        defaults: dict[str, Any] = {
            "prompt_token_ids": prompt,
            "token_ids": sampled,
            "logprobs": [-0.125 * (1 + token % 7) for token in sampled],
            "policy_version": version,
            "policy_version_end": version,
            "finish_reason": "stop",
            "http_status": 200,
            "temperature": temperature,
            "usage": {"prompt_tokens": len(prompt), "completion_tokens": len(sampled)},
            **shape,
        }
        told_of: dict[str, Any] = {**defaults, **fields, "request": request, "policy": policy}
        started = self.tick()
        record = CallRecord(name, turn, seat, "m", self.episode.id, RUN, started=started, seconds=0.25, **told_of)
        self.episode.add([record])


def used(*workers: str) -> dict[str, Any]:
    calls = [
        {"id": f"t-{worker}", "type": "function", "function": {"name": worker, "arguments": '{"message": "7"}'}}
        for worker in workers
    ]
    return {"role": "assistant", "content": None, "tool_calls": calls}


def result(worker: str, text: str) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": f"t-{worker}", "content": text}


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def fan_out() -> Episode:
    """A manager asks two workers at once, goes on, forks; one worker retries; a frozen judge has the last word."""
    play = Play("e-fan", "t1", "sum 7", "team")
    play.turn("m1", "manager", "s-m", "sum 7", "nine")
    opening = "<u> sum 7 <a>"
    play.call("m1-a", "m1", "manager", "boss", [user("sum 7")], opening, "ask both <e>", answer=used("one", "two"))
    play.turn("w1", "worker", "s-w1", "7", "four", parent_call_id="m1")
    play.turn("w2", "worker", "s-w2", "7", "five", parent_call_id="m1")
    play.call("w1-a", "w1", "worker", "hand", [user("7")], "<u> 7 <a>", "four <e>", api="responses")
    play.call("w2-a", "w2", "worker", "hand", [user("7")], "<u> 7 <a>", "six <e>")
    play.call("w2-b", "w2", "worker", "hand", [user("7")], "<u> 7 <a>", "five <e>", retry_of="w2-a", attempt=2)
    heard = [user("sum 7"), used("one", "two"), result("one", "four"), result("two", "five")]
    held = f"{opening} ask both <e> <t> four <t> five <a>"
    play.call("m1-b", "m1", "manager", "boss", heard, held, "think more <e>", version=4, temperature=0.9)
    again = [user("sum 7"), used("one", "two"), user("short")]
    play.call("m1-c", "m1", "manager", "boss", again, f"{opening} ask both <e> <u> short <a>", "nine <e>", version=4)
    further = [*heard, {"role": "assistant", "content": "think more <e>"}, user("so")]
    play.call(
        "m1-d", "m1", "manager", "boss", further, f"{held} think more <e> <u> so <a>", "nine", finish_reason="length",
        version=4,
    )  # fmt: skip
    play.turn("j1", "judge", "s-j", "nine", "good", parent_call_id="m1")
    play.call("j1-a", "j1", "judge", "frozen", [user("nine")], "<u> nine <a>", "good <e>", api="messages", version=0)
    play.episode.score("correct", 1.0)
    play.episode.score("style", None, source="judge")
    play.episode.score("short", 0.5, seat="worker", weight=0.2)
    play.episode.rewards += [
        RewardRecord("correct", 0.25, 1.0, "judge", "trace", "s-w1", play.episode.id),
        RewardRecord("without", 0.5, 0.0, "difference", "trace", "s-w2", play.episode.id),
    ]
    return play.episode


def failed_callee() -> Episode:
    """The same task again: one worker's model fails, and the manager answers with what the other one said."""
    play = Play("e-fail", "t1", "sum 7", "team")
    play.turn("f-m1", "manager", "s-fm", "sum 7", "four")
    opening = "<u> sum 7 <a>"
    play.call("f-m1-a", "f-m1", "manager", "boss", [user("sum 7")], opening, "ask both <e>", answer=used("one", "two"))
    play.turn("f-w1", "worker", "s-fw1", "7", "four", parent_call_id="f-m1")
    play.call("f-w1-a", "f-w1", "worker", "hand", [user("7")], "<u> 7 <a>", "four <e>", temperature=None)
    play.turn("f-w2", "worker", "s-fw2", "7", None, parent_call_id="f-m1")
    play.call(
        "f-w2-a", "f-w2", "worker", "hand", [user("7")], "<u> 7 <a>", "", status="agent_failed", http_status=500,
        error={"code": "agent_failed", "message": "out of memory"}, response=None, prompt_token_ids=None,
        token_ids=None, logprobs=None, finish_reason=None, usage=None,
    )  # fmt: skip
    heard = [user("sum 7"), used("one", "two"), result("one", "four"), result("two", "error")]
    play.call("f-m1-b", "f-m1", "manager", "boss", heard, f"{opening} ask both <e> <t> four <t> error <a>", "four <e>")
    play.episode.score("correct", 0.0)
    play.episode.score("short", 1.0, seat="worker", weight=0.2)
    return play.episode


def never_ended() -> Episode:
    """An episode that ran out of time: nothing of it is trained."""
    play = Play("e-late", "t2", "sum 8", "team")
    play.turn("l-m1", "manager", "s-lm", "sum 8", None)
    play.call("l-m1-a", "l-m1", "manager", "boss", [user("sum 8")], "<u> sum 8 <a>", "ask both <e>")
    play.episode.fail(AgentFailed("the tool is gone"), call_id="l-m1")
    play.episode.fail(DeadlineExceeded("120 s are over"))
    return play.episode


def duel(attempt: int, winner: str) -> Episode:
    """One policy plays both seats, two turns each in one conversation; it is published anew in between. The right one is
    greedy."""
    play = Play(f"e-duel-{attempt}", "d1", "5 3", "duel")
    moves = {"left": ["take 2", "take 1"], "right": ["take 1", "take 3"]}
    for number in range(2):
        for seat in ("left", "right"):
            turn, session = f"d{attempt}-{seat}-{number}", f"s-d{attempt}-{seat}"
            said = moves[seat][(number + attempt) % 2]
            before = [moves[seat][(at + attempt) % 2] for at in range(number)]
            messages = [user("5 3")]
            told = "<u> 5 3 <a>"
            for earlier in before:
                messages += [{"role": "assistant", "content": f"{earlier} <e>"}, user("your turn")]
                told += f" {earlier} <e> <u> your turn <a>"
            play.turn(turn, seat, session, "5 3" if not number else "your turn", said)
            heat = 0.0 if seat == "right" else 0.7
            play.call(
                f"{turn}-a", turn, seat, "player", messages, told, f"{said} <e>", version=3 + number, temperature=heat
            )
    for seat in ("left", "right"):
        play.episode.score("won", 1.0 if seat == winner else -1.0, seat=seat)
    return play.episode


def golden() -> list[Episode]:
    made = [fan_out(), failed_callee(), never_ended(), duel(0, "left"), duel(1, "right")]
    for trace in made[0].traces:
        trace.trainable = trace.seat != "judge"
    return made


if __name__ == "__main__":
    GOLDEN.unlink(missing_ok=True)
    with EpisodeWriter(GOLDEN) as writer:
        writer.append(golden())
