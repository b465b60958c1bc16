"""The call tree of an episode, drawn for people."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent_env.episodes.episode import Episode, Node
from agent_env.episodes.records import CallRecord, Json, RewardRecord
from agent_env.episodes.summary import EpisodeSummary

if TYPE_CHECKING:
    from rich.tree import Tree

_WIDTH = 60


def render_tree(episode: Episode) -> Tree:
    """Draws the calls of an episode, nested, with who asked whom, timings, model calls and rewards."""
    from rich.markup import escape
    from rich.tree import Tree

    state = "[green]ok[/]" if episode.ok else "[red]failed[/]"
    outline = EpisodeSummary.of(episode)
    tokens = _tokens(outline.prompt_tokens, outline.sampled_tokens)
    head = f"[bold]{escape(episode.id)}[/] {state}{_seconds(episode.seconds)}{tokens}{_reward(episode.reward())}"
    tree = Tree(f"{head} {escape(_short(episode.task))}")
    for failure in episode.failures:
        tree.add(f"[red]{escape(failure.boundary)}: {escape(failure.code)}[/] {escape(failure.message)}")
    root = episode.tree()
    for call in root.calls:
        tree.add(_call_line(call))
    for child in root.children:
        _grow(tree, child)
    if episode.rewards:
        branch = tree.add("rewards")
        for reward in episode.rewards:
            branch.add(_reward_line(reward))
        for seat in episode.seats():
            if any(reward.target == "seat" and reward.target_id == seat for reward in episode.rewards):
                branch.add(f"[bold]{escape(seat)}[/]{_reward(episode.reward(seat))} [dim]in all[/]")
    return tree


def _grow(parent: Tree, node: Node) -> None:
    branch = parent.add(_node_line(node))
    for call in node.calls:
        branch.add(_call_line(call))
    for child in node.children:
        _grow(branch, child)


def _node_line(node: Node) -> str:
    from rich.markup import escape

    edge, turn = node.edge, node.turn
    seat = (turn.seat if turn is not None else None) or (edge.callee_seat if edge is not None else None)
    agent = turn.agent if turn is not None else edge.callee if edge is not None else "?"
    record = turn or edge
    line = f"[bold cyan]{escape(agent)}[/]"
    if seat:
        line += f" as {escape(seat)}"
    if edge is not None and edge.protocol:
        line += f" [dim]over {escape(edge.protocol)}[/]"
    if record is not None:
        line += _seconds(record.seconds)
        line += "" if turn is None else _reward(turn.reward)
        if record.request is not None or record.reply is not None:
            line += f"  {escape(_short(record.request))} [dim]->[/] {escape(_short(record.reply))}"
        if record.status != "ok":
            line += f" [red]{escape(record.status)}[/]"
    if turn is None:
        line += " [yellow](told nothing)[/]"
    return line


def _call_line(call: CallRecord) -> str:
    from rich.markup import escape

    version = "" if call.policy_version is None else f" v{escape(str(call.policy_version))}"
    if call.policy_version_end not in (None, call.policy_version):
        version += f"→v{escape(str(call.policy_version_end))}"
    told = call.prompt_token_ids, call.token_ids
    tokens = _tokens(*(None if ids is None else len(ids) for ids in told)) or " [dim]no token ids[/]"
    policy = f" [dim]by {escape(call.policy)}[/]" if call.policy else ""
    line = f"[magenta]{escape(call.model)}[/]{policy}{version}{tokens}{_seconds(call.seconds)}"
    if call.retries:
        line += f" [yellow]{call.retries} {'retry' if call.retries == 1 else 'retries'}[/]"
    if call.retry_of is not None:
        line += f" [yellow]again {escape(call.retry_of)}[/]"
    if call.retry_among:
        line += f" [yellow]again one of {escape(', '.join(call.retry_among))}[/]"
    elif call.retry_among is not None:
        line += " [yellow]again, as it was refused[/]"
    if call.choice_of is not None:
        line += f" [dim]choice of {escape(call.choice_of)}[/]"
    if call.status != "ok":
        line += f" [red]{escape(call.status)}[/]"
    return line


def _reward_line(reward: RewardRecord) -> str:
    from rich.markup import escape

    whose = "team" if reward.target == "episode" else f"{reward.target} {reward.target_id}"
    value = "not scored" if reward.value is None else f"{reward.value:g}"
    return f"{escape(reward.name)} = {value} [dim]x {reward.weight:g}, {escape(whose)}, by {escape(reward.source)}[/]"


def _reward(value: float | None) -> str:
    return "" if value is None else f" [green]reward {value:g}[/]"


def _tokens(prompt: int | None, sampled: int | None) -> str:
    return "" if prompt is None or sampled is None else f" [dim]{prompt}+{sampled} tokens[/]"


def _seconds(value: float | None) -> str:
    if value is None:
        return ""
    return f" [dim]{value * 1000:.1f} ms[/]" if value < 1 else f" [dim]{value:.2f} s[/]"


def _short(value: Json) -> str:
    text = "" if value is None else value if isinstance(value, str) else str(value)
    text = " ".join(text.split())
    return text if len(text) <= _WIDTH else text[: _WIDTH - 1] + "…"
