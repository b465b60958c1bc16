"""What an environment can be asked for: tools, functions, extensions, and what the wrapper behind it can do."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from agent_env_cards.fact import Fact, Flag, JsonObject

NO_PARAMETERS: JsonObject = {"type": "object", "properties": {}}


class ToolCard(Fact):
    """A tool or a function: its name, what it does, and the JSON Schemas of its arguments and of its result.

    Without `input_schema` it takes no arguments; without `output_schema` nothing is promised about the result.
    """

    name: str
    description: str = ""
    input_schema: JsonObject = NO_PARAMETERS
    output_schema: JsonObject | None = None


class Extension(Fact):
    """A part of the environment beyond this protocol, by the URI that defines it; the version is in the URI."""

    uri: str
    description: str | None = None
    params: JsonObject | None = None
    required: Flag | None = None


class Capabilities(Fact):
    """What the environment can be asked for.

    `tools` are for every caller; `functions` are calls that only an orchestrator makes. `operations` are the
    operations of the data plane at the card's `url`: None means a card from before the member existed, which has all
    of "data/reset", "data/add" and "data/get"; an empty list means none.
    """

    extensions: list[Extension] = Field(default=[])
    tools: list[ToolCard] = Field(default=[])
    functions: list[ToolCard] = Field(default=[])
    operations: list[str] | None = None


class AgentCaps(Fact):
    """What the agent's wrapper can do, so that callers know what to rely on.

    | member | values |
    |---|---|
    | `state` | "value", "handle" or "none": whether and how a conversation is remembered |
    | `tools`, `model` | "turn", "factory" or "none": how peers and a model's address reach the agent |
    | `concurrency` | "reentrant" or "lock": whether conversations run at once |
    | `parts` | the kinds of message parts that it reads: "text", "data", "file" |

    A reader takes values that it does not know; they promise nothing to it.
    """

    streaming: Flag = False
    tool_events: Flag = False
    usage: Flag = False
    interrupts: Flag = False
    state: str = "none"
    fork: Flag = False
    tools: str = "none"
    model: str = "none"
    concurrency: str = "reentrant"
    parts: list[str] = Field(default=["text"])

    def model_post_init(self, context: Any) -> None:
        # A set of parts has another order in each process; the card has one.
        self.parts.sort()
