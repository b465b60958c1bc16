"""Launching: how a release is started, and the process that becomes its instance."""

from agent_env.launch.finder import find_or_launch
from agent_env.launch.launcher import LAUNCH_SECONDS, LINGER_SECONDS, TRUST_VARIABLE, launch, log_directory
from agent_env.launch.probe import answers
from agent_env.launch.programs import agents_served
from agent_env.launch.source import source_hash
from agent_env.launch.spec import CommandLaunch, LaunchSpec, PythonLaunch, UrlLaunch, parse_launch, python_launch

__all__ = [
    "LAUNCH_SECONDS",
    "LINGER_SECONDS",
    "TRUST_VARIABLE",
    "CommandLaunch",
    "LaunchSpec",
    "PythonLaunch",
    "UrlLaunch",
    "agents_served",
    "answers",
    "find_or_launch",
    "launch",
    "log_directory",
    "parse_launch",
    "python_launch",
    "source_hash",
]
