"""Run by an interpreter with a2a-sdk 0.3: a stock server on a free port, which it prints."""

import socket

import uvicorn
from a2a.server.agent_execution import AgentExecutor, RequestContext
from a2a.server.apps import A2AStarletteApplication
from a2a.server.events import EventQueue
from a2a.server.request_handlers import DefaultRequestHandler
from a2a.server.tasks import InMemoryTaskStore, TaskUpdater
from a2a.types import AgentCapabilities, AgentCard, AgentSkill, Part, TextPart
from a2a.utils import new_agent_text_message, new_task


class Agent(AgentExecutor):
    def __init__(self) -> None:
        self.turns: dict[str, int] = {}

    async def execute(self, context: RequestContext, event_queue: EventQueue) -> None:
        said = context.get_user_input()
        turn = self.turns[context.context_id] = self.turns.get(context.context_id, 0) + 1
        if not said.startswith("task"):
            reply = new_agent_text_message(f"{turn}: {said}", context.context_id)
            await event_queue.enqueue_event(reply)
            return
        if context.current_task is None:
            await event_queue.enqueue_event(new_task(context.message))
        updates = TaskUpdater(event_queue, context.task_id, context.context_id)
        await updates.start_work()
        for number, word in enumerate(said.split()):
            await updates.add_artifact(
                [Part(root=TextPart(text=word + " "))], artifact_id=f"a{turn}", append=number > 0
            )
        if said == "task ask":
            await updates.requires_input(new_agent_text_message("whom?"), final=True)
        else:
            await updates.complete()

    async def cancel(self, context: RequestContext, event_queue: EventQueue) -> None:
        await TaskUpdater(event_queue, context.task_id, context.context_id).cancel()


listener = socket.socket()
listener.bind(("127.0.0.1", 0))
port = listener.getsockname()[1]
card = AgentCard(
    name="old",
    description="An agent of the older kind.",
    version="1",
    url=f"http://127.0.0.1:{port}/",
    capabilities=AgentCapabilities(streaming=True),
    default_input_modes=["text/plain"],
    default_output_modes=["text/plain"],
    skills=[AgentSkill(id="x", name="x", description="x", tags=["x"])],
)
app = A2AStarletteApplication(card, DefaultRequestHandler(Agent(), InMemoryTaskStore())).build()
listener.listen()
print(port, flush=True)
uvicorn.Server(uvicorn.Config(app, log_config=None)).run(sockets=[listener])
