"""`python -m agent_env.cli` is `agent-env`."""

from agent_env.cli import main

main()
