"""What a team of agents did: records, episodes, and where they are kept."""

from agent_env.episodes.boundaries import Boundary
from agent_env.episodes.choice import Choice
from agent_env.episodes.database import EpisodeStore
from agent_env.episodes.episode import Episode, Failure, Node, Trace
from agent_env.episodes.graph import MessageNode, message_graph, path_to, paths
from agent_env.episodes.recorder import EpisodeRecorder, new_episode_id, recording
from agent_env.episodes.records import (
    RECORD_KINDS,
    AnyRecord,
    CallRecord,
    EdgeRecord,
    RewardRecord,
    TurnRecord,
    record_from_json,
)
from agent_env.episodes.sources import EpisodeFile, EpisodeSource, open_episodes
from agent_env.episodes.store import EpisodeReader, EpisodeWriter, find_episode
from agent_env.episodes.summary import EpisodeSummary
from agent_env.episodes.tree import render_tree

__all__ = [
    "RECORD_KINDS",
    "AnyRecord",
    "Boundary",
    "CallRecord",
    "Choice",
    "EdgeRecord",
    "Episode",
    "EpisodeFile",
    "EpisodeReader",
    "EpisodeRecorder",
    "EpisodeSource",
    "EpisodeStore",
    "EpisodeSummary",
    "EpisodeWriter",
    "Failure",
    "MessageNode",
    "Node",
    "RewardRecord",
    "Trace",
    "TurnRecord",
    "find_episode",
    "message_graph",
    "new_episode_id",
    "open_episodes",
    "path_to",
    "paths",
    "record_from_json",
    "recording",
    "render_tree",
]
