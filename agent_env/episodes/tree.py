"""The call tree of an episode, drawn for people."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent_env.episodes.episode import Episode, Node
from agent_env.episodes.records import CallRecord, Json, RewardRecord

if TYPE_CHECKING:
    from rich.tree import Tree

_WIDTH = 60


def render_tree(episode: Episode) -> Tree:
    """Draws the calls of an episode, nested, with who asked whom, timings, model calls and rewards."""
    from rich.markup import escape
    from rich.tree import Tree

    state = "[green]ok[/]" if episode.ok else "[red]failed[/]"
    total = _total(episode)
    tree = Tree(
        f"[bold]{escape(episode.id)}[/] {state}{_seconds(episode.seconds)}{total} {escape(_short(episode.task))}"
    )
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
        line += f"  {escape(_short(record.request))} [dim]->[/] {escape(_short(record.reply))}"
        if record.status != "ok":
            line += f" [red]{escape(record.status)}[/]"
    if turn is None:
        line += " [yellow](told nothing)[/]"
    return line


def _call_line(call: CallRecord) -> str:
    from rich.markup import escape

    version = "" if call.policy_version is None else f" v{escape(str(call.policy_version))}"
    tokens = "no token ids"
    if call.token_ids is not None and call.prompt_token_ids is not None:
        tokens = f"{len(call.prompt_token_ids)}+{len(call.token_ids)} tokens"
    line = f"[magenta]{escape(call.model)}[/]{version} [dim]{tokens}[/]{_seconds(call.seconds)}"
    if call.status != "ok":
        line += f" [red]{escape(call.status)}[/]"
    return line


def _reward_line(reward: RewardRecord) -> str:
    from rich.markup import escape

    whose = "team" if reward.target == "episode" else f"{reward.target} {reward.target_id}"
    value = "not scored" if reward.value is None else f"{reward.value:g}"
    return f"{escape(reward.name)} = {value} [dim]x {reward.weight:g}, {escape(whose)}, by {escape(reward.source)}[/]"


def _total(episode: Episode) -> str:
    value = episode.reward()
    return "" if value is None else f" reward {value:g}"


def _seconds(value: float | None) -> str:
    if value is None:
        return ""
    return f" [dim]{value * 1000:.1f} ms[/]" if value < 1 else f" [dim]{value:.2f} s[/]"


def _short(value: Json) -> str:
    text = "" if value is None else value if isinstance(value, str) else str(value)
    text = " ".join(text.split())
    return text if len(text) <= _WIDTH else text[: _WIDTH - 1] + "…"
