"""`AgentEnvironment`: what its owner says and adds, what is refused, and how it starts, ends and starts again."""

from __future__ import annotations

import asyncio
import inspect
from pathlib import Path
from typing import Any, get_type_hints

import anyio
import pytest

from agent_env import AgentEnvironment, Environment, Limits, Need, Offer, Reward, SessionView, Skill, Tokens
from agent_env.context import Principal, Record
from agent_env.errors import ConfigurationError, InvalidArguments, UnknownSession
from agent_env.hub import Hub, Location, locate
from agent_env.hub.app import hub_app
from agent_env.hub.local import LocalHub
from agent_env.net import bound_url, listen
from agent_env.net.serving import served
from agent_env.serving.options import Options
from agent_env_cards import Provider, SampleRequest

pytestmark = pytest.mark.anyio


async def counting(message: str, history: list[dict[str, str]]) -> str:
    """Counts what it hears."""
    return f"{len(history) // 2 + 1}: {message}"


class Helper:
    """Helps, as an object that can be called."""

    async def __call__(self, message: str) -> str:
        return message


# ── names and facts ────────────────────────────────────────────────────────────────────────────────────────────────


async def test_without_a_name_and_a_version_it_is_a_draft_under_the_agents_own_name() -> None:
    card = await AgentEnvironment(counting).card()
    assert (card.ref, card.description, card.kind) == ("counting@0.0.0-dev", "Counts what it hears.", "agent")


async def test_a_lambda_must_be_named() -> None:
    with pytest.raises(ConfigurationError, match="give one: name='my-agent'"):
        await AgentEnvironment(lambda message: message).runtime()
    assert (await AgentEnvironment(lambda message: message, name="echo").card()).name == "echo"


@pytest.mark.parametrize(
    ("options", "remedy"),
    [
        ({"name": "Agent B"}, "write 'agent-b'"),
        ({"name": "a/b/c"}, "write 'b/c'"),
        ({"version": "1.0"}, "such as '1.0.0'"),
        ({"version": "v1.0.0"}, "1.0.0"),
        ({"peers": {"The Solver": "b"}}, "must start with a lower-case letter"),
        ({"wrapper": "no-such-wrapper"}, "no-such-wrapper"),
        ({"auth": {"with space": ["chat"]}}, "printable ASCII"),
    ],
)
async def test_what_no_environment_can_be_is_refused_with_the_remedy(options: dict[str, Any], remedy: str) -> None:
    with pytest.raises(ConfigurationError, match=remedy):
        AgentEnvironment(counting, **options)


async def test_an_object_that_is_no_agent_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="int"):
        AgentEnvironment(7)


async def test_facts_that_no_card_may_have_are_refused_before_it_starts() -> None:
    env = AgentEnvironment(counting, name="counting", skills=["math"], examples=["only one"], tags=[" spaces "])
    with pytest.raises(ConfigurationError, match=r"counting@0\.0\.0-dev cannot be an environment") as refused:
        await env.runtime()
    assert "/offers/examples" in refused.value.message and "/offers/tags" in refused.value.message
    with pytest.raises(ConfigurationError):
        async with env.serving():
            pass


async def test_the_card_says_what_the_owner_said() -> None:
    env = AgentEnvironment(
        Helper(),
        name="team/helper",
        version="1.2.3",
        description="Helps.",
        skills=["math.algebra", Skill(id="prose", description="Writes.")],
        tags=["fast"],
        examples=["Solve 2x = 6.", SampleRequest(request="Write a line.")],
        needs=[Need("checker", skills=["proofreading"])],
        limits=Limits(turn_limit=5, max_sessions=7, idle_seconds=60),
        provider=Provider(organization="Acme"),
        license="MIT",
        auth={"s3cret": ["chat"]},
    )
    card = await env.card()
    assert (card.ref, card.description, card.license) == ("team/helper@1.2.3", "Helps.", "MIT")
    assert [skill.id for skill in card.offers.skills] == ["math.algebra", "prose"]
    assert card.offers.tags == ["fast"] and len(card.offers.examples) == 2
    assert [need.seat for need in card.needs] == ["checker"]
    assert card.provider is not None and card.provider.organization == "Acme"
    assert card.episode.turn_limit == 5
    assert card.session is not None and (card.session.capacity, card.session.idle_timeout) == (7, 60)
    assert card.auth is not None and card.auth.schemes["bearer"].scheme == "bearer"
    assert (await AgentEnvironment(Helper(), name="h", offers=Offer(tags=["slow"])).card()).offers.tags == ["slow"]


async def test_instance_facts_do_not_change_the_digest() -> None:
    bare = await AgentEnvironment(counting, name="c", version="1.0.0").card()
    dressed = AgentEnvironment(counting, name="c", version="1.0.0", license="MIT", auth={"s3cret": ["chat"]})
    async with dressed.serving(public_url="https://agents.example") as server:
        assert server.card.digest() == bare.digest()


def test_every_keyword_of_the_environment_can_be_passed_on_and_no_other() -> None:
    own = set(inspect.signature(AgentEnvironment.__init__).parameters) - {"self", "agent", "name", "version"}
    assert set(Options.__annotations__) == own
    hints = get_type_hints(AgentEnvironment.__init__)
    assert {name: hints[name] for name in own} == get_type_hints(Options)


# ── what the owner adds ────────────────────────────────────────────────────────────────────────────────────────────


def owned() -> AgentEnvironment:
    env = AgentEnvironment(counting, name="owned")

    @env.tool
    def add(a: int, b: int = 2) -> int:
        """Adds two numbers.

        Args:
            a: The first.
            b: The second.
        """
        return a + b

    @env.tool(name="remember")
    async def keep(word: str, session: SessionView) -> list[str]:
        session.memory.setdefault("words", []).append(word)
        return list(session.memory["words"])

    @env.function(name="peek")
    def look(session: SessionView) -> int:
        return session.turns

    assert add(1) == 3  # what is decorated stays what it was
    return env


async def test_tools_stand_beside_chat_and_functions_do_not() -> None:
    env = owned()
    card = await env.card()
    assert [tool.name for tool in card.capabilities.tools] == ["chat", "add", "remember"]
    assert [function.name for function in card.capabilities.functions] == ["peek"]
    add = card.tool("add")
    assert add is not None and add.description == "Adds two numbers."
    assert add.input_schema["properties"]["a"]["description"] == "The first."
    async with Environment(env) as caller:
        assert (await caller.call_tool("add", {"a": 1})).data == 3
        with pytest.raises(InvalidArguments, match="/a"):
            await caller.call_tool("add", {"a": "one"})
        assert (await caller.call_tool("remember", {"word": "x"})).data == ["x"]
        assert (await caller.call_tool("remember", {"word": "y"})).data == ["x", "y"]
        await caller.chat("hi")
        assert await caller.call_function("peek") == 1


async def test_functions_can_be_given_as_arguments_too() -> None:
    def half(number: float) -> float:
        return number / 2

    def grade(session: SessionView) -> float:
        return 0.5

    env = AgentEnvironment(counting, tools=[half], functions=[half], rewards=[grade])
    async with Environment(env) as caller:
        assert (await caller.call_tool("half", {"number": 3})).data == 1.5
        assert await caller.call_function("half", {"number": 5}) == 2.5
        assert (await caller.chat("x")).reward == 0.5


def takes_an_argument(session: SessionView, wanted: str) -> float:
    return 0.0


@pytest.mark.parametrize(
    ("add", "remedy"),
    [
        (lambda env: env.tool(takes_an_argument, name="chat"), "there is a tool 'chat' already"),
        (lambda env: env.tool(name="add")(takes_an_argument), "pass name="),
        (lambda env: env.function(name="peek")(takes_an_argument), "there is a function 'peek' already"),
        (lambda env: env.tool(name="not a name")(takes_an_argument), "must be 1 to 64 letters"),
        (lambda env: env.tool(lambda: 1), "'<lambda>' must be .* pass name="),
        (lambda env: env.reward(takes_an_argument), "needs 'wanted', which nobody gives it"),
        (lambda env: env.on_reset(takes_an_argument), "needs 'wanted', which nobody gives it"),
        (lambda env: env.tool(lambda *args: args, name="loose"), "give the function plain named parameters"),
    ],
)
async def test_what_cannot_be_added_is_refused_with_the_remedy(add: Any, remedy: str) -> None:
    with pytest.raises(ConfigurationError, match=remedy):
        add(owned())


@pytest.mark.parametrize("kind", ["tool", "function", "reward", "on_reset"])
async def test_nothing_is_added_once_its_card_is_out(kind: str) -> None:
    env = AgentEnvironment(counting)
    await env.runtime()
    with pytest.raises(ConfigurationError, match=f"add the {kind} before its first use"):
        getattr(env, kind)(lambda: None) if kind == "on_reset" else getattr(env, kind)(lambda: None, name="late")


# ── episodes ───────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_on_reset_makes_the_first_observation_from_the_seed_and_the_options() -> None:
    env = AgentEnvironment(counting)

    @env.on_reset
    def start(session: SessionView) -> dict[str, Any]:
        session.memory["goal"] = session.options["goal"]
        return {"seed": session.seed, "goal": session.memory["goal"]}

    @env.reward
    def reached(session: SessionView) -> float:
        return float(session.message == session.memory["goal"])

    assert (await env.card()).episode.seedable
    async with Environment(env) as caller:
        assert (await caller.reset(seed=7, options={"goal": "x"})).observation == {"seed": 7, "goal": "x"}
        assert (await caller.step("y")).reward == 0.0
        assert (await caller.step("x")).reward == 1.0
    assert not (await AgentEnvironment(counting).card()).episode.seedable


async def test_rewards_are_summed_by_weight_and_one_of_them_may_end_the_episode() -> None:
    env = AgentEnvironment(counting)

    @env.reward(weight=10)
    def right(session: SessionView) -> float:
        return float(session.message == "done")

    @env.reward(weight=0.5, name="speed")
    async def quick(session: SessionView) -> Reward:
        return Reward(1.0 / session.turns, done=session.message == "done")

    @env.reward
    def silent(session: SessionView) -> None:
        return None

    async with Environment(env) as caller:
        first = await caller.step("no")
        assert (first.reward, first.terminated) == (0.5, False)
        second = await caller.step("done")
        assert (second.reward, second.terminated) == (10.25, True)
        assert (await caller.state())["terminated"]
        with pytest.raises(InvalidArguments, match="has ended; reset it"):
            await caller.chat("more")
        assert await caller.call_reward("right") == 1.0
        assert await caller.call_reward("silent") is None
        await caller.reset()
        assert not (await caller.step("no")).terminated


async def test_a_reward_that_was_not_given_is_none() -> None:
    def nothing() -> None:
        """Gives nothing."""

    for env in (AgentEnvironment(counting), AgentEnvironment(counting, rewards=[nothing])):
        async with Environment(env) as caller:
            assert (await caller.step("x")).reward is None


async def test_the_turn_limit_truncates() -> None:
    env = AgentEnvironment(counting, limits=Limits(turn_limit=2))
    async with Environment(env) as caller:
        assert [(await caller.step(word)).truncated for word in "ab"] == [False, True]
        with pytest.raises(InvalidArguments, match="2 turns; reset it"):
            await caller.step("c")


# ── starting and ending ────────────────────────────────────────────────────────────────────────────────────────────


async def test_it_can_be_called_without_any_protocol() -> None:
    kept: list[Record] = []

    class Kept:
        async def record(self, records: Any) -> None:
            kept.extend(records)

    env = AgentEnvironment(counting, recorder=Kept())
    first = await env.call("chat", {"message": "a"})
    assert (await env.call("chat", {"message": "b"}, session=first.session_id)).text == "2: b"
    assert [record["request"] for record in kept] == ["a", "b"]


async def test_it_starts_once_however_many_ask_at_the_same_time() -> None:
    env = AgentEnvironment(counting)
    found = await asyncio.gather(*(env.runtime() for _ in range(5)))
    assert len({id(runtime) for runtime in found}) == 1


async def test_closing_ends_the_sessions_and_it_can_be_started_again() -> None:
    env = AgentEnvironment(counting)
    first = await env.call("chat", {"message": "a"})
    await env.aclose()
    with pytest.raises(UnknownSession):
        await env.call("chat", {"message": "b"}, session=first.session_id)
    assert (await env.call("chat", {"message": "b"})).text == "1: b"
    await env.aclose()
    await env.aclose()


async def test_after_serving_it_can_be_served_again_elsewhere() -> None:
    env = AgentEnvironment(counting, name="counting", version="1.0.0")
    ports: set[str] = set()
    for _ in range(2):
        async with env.serving() as server, Environment(server.url, lane="http") as caller:
            assert (await caller.chat("a")).text == "1: a"
            ports.add(server.url)
        assert env._runtime is None
    async with Hub.open() as hub:
        assert await hub.instances("counting") == []


async def test_an_error_in_the_block_comes_out_as_it_is_and_ends_it_all_the_same() -> None:
    env = AgentEnvironment(counting)
    with pytest.raises(ZeroDivisionError):
        async with env.serving() as server:
            runtime = server.runtime
            await env.call("chat", {"message": "a"})
            _ = 1 / 0
    assert runtime.closing and len(runtime.sessions) == 0


async def test_served_at_two_places_it_ends_with_the_last() -> None:
    env = AgentEnvironment(counting)
    async with env.serving() as one:
        async with env.serving() as other, Environment(other.url, lane="http") as caller:
            session_id = (await caller.chat("a")).session_id
            caller.keep_session()
        async with Environment(one.url, lane="http", session_id=session_id) as caller:
            assert (await caller.chat("b")).text == "2: b"
        assert not one.runtime.closing
    assert one.runtime.closing


async def test_it_is_listed_while_it_is_served_unless_it_is_not_to_be() -> None:
    async with Hub.open() as hub:
        async with AgentEnvironment(counting, version="1.0.0").serving(launch_id="l-1", source="sha256:x") as server:
            (instance,) = await hub.instances("counting")
            assert (instance.url, instance.launch_id, instance.source) == (server.url, "l-1", "sha256:x")
            assert instance.digest == server.card.digest()
        assert await hub.instances("counting") == []
        async with AgentEnvironment(counting, name="quiet").serving(register=False):
            assert await hub.instances("quiet") == []
        async with AgentEnvironment(counting, name="quiet", hub=False).serving():
            assert await hub.instances("quiet") == []


async def test_it_warns_when_a_hub_elsewhere_is_told_an_address_of_this_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    listener = listen()
    url = bound_url(listener)
    async with served(hub_app(LocalHub(locate(tmp_path / "served.db"))), listener):
        async with AgentEnvironment(counting, hub=url).serving():
            assert "public_url" not in caplog.text
        monkeypatch.setattr(Location, "local", property(lambda self: False))
        async with AgentEnvironment(counting, hub=url).serving() as server:
            assert f"{server.url} can be reached from this one alone; serve with --public-url" in caplog.text


async def test_another_card_under_a_published_version_does_not_start() -> None:
    from agent_env.errors import ReleaseConflict

    async with AgentEnvironment(counting, version="1.0.0").serving():
        pass
    with pytest.raises(ReleaseConflict, match="bump the version"):
        async with AgentEnvironment(counting, version="1.0.0", description="Other.").serving():
            raise AssertionError("it must not be served")


def test_it_belongs_to_one_event_loop_at_a_time() -> None:
    env = AgentEnvironment(counting)

    async def talk() -> str:
        return (await env.call("chat", {"message": "a"})).text

    assert asyncio.run(talk()) == "1: a"
    # The loop that it ran in is gone, and so are its sessions.
    assert asyncio.run(talk()) == "1: a"

    async def from_two() -> None:
        await env.runtime()
        with pytest.raises(ConfigurationError, match="runs in another event loop; reach it by its URL"):
            await anyio.to_thread.run_sync(lambda: asyncio.run(talk()))

    asyncio.run(from_two())


async def test_tokens_are_taken_as_they_are_or_as_a_mapping() -> None:
    tokens = Tokens({"s3cret": Principal("alice", frozenset({"chat"}))})
    for auth in (tokens, {"s3cret": Principal("alice", frozenset({"chat"}))}):
        async with AgentEnvironment(counting, auth=auth).serving() as server:
            async with Environment(server.url, lane="http", auth="s3cret") as caller:
                assert (await caller.chat("a")).text == "1: a"
                assert [session.principal for session in server.runtime.sessions] == ["alice"]


def test_a_name_is_no_need() -> None:
    given: Any = ["solver"]
    with pytest.raises(ConfigurationError, match=r"not 'solver'; write Need\("):
        AgentEnvironment(lambda message: message, name="manager", needs=given)
