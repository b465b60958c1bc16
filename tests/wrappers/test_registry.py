"""How an agent finds its wrapper, with a third party's package that is really installed."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from driving import done

from agent_env_wrappers.callable import CallableWrapper
from agent_env_wrappers.conformance import Subject, check_wrapper
from agent_env_wrappers.contract import WrapError
from agent_env_wrappers.openai_endpoint import OpenAIEndpointWrapper
from agent_env_wrappers.registry import available, wrap

pytestmark = pytest.mark.anyio

PLUGIN = Path(__file__).parent / "plugin_package"
BUILT_IN = ["callable", "factory", "langgraph", "openai-agents", "openai-endpoint", "pydantic-ai"]


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder into which the third party's package is installed, as pip installs one."""
    target = tmp_path_factory.mktemp("site")
    offline = ["--no-build-isolation"] if importlib.util.find_spec("hatchling") else []
    command = [sys.executable, "-m", "uv", "pip", "install", "--quiet", "--no-deps", "--python", sys.executable]
    subprocess.run([*command, *offline, "--target", str(target), str(PLUGIN)], check=True, timeout=120)
    return target


@pytest.fixture
def acme(installed: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The third party's framework, importable and found."""
    monkeypatch.syspath_prepend(str(installed))
    yield __import__("acme_agents")
    for name in [name for name in sys.modules if name.partition(".")[0] == "acme_agents"]:
        del sys.modules[name]


@pytest.fixture
def distribution(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Puts a distribution with one entry point and the source of its module on the path."""

    def make(name: str, point: str, source: str) -> None:
        module = point.partition("=")[2].strip().partition(":")[0]
        (tmp_path / f"{module}.py").write_text(source)
        info = tmp_path / f"{name}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(f"[agent_env_wrappers]\n{point}\n")
        monkeypatch.syspath_prepend(str(tmp_path))
        monkeypatch.delitem(sys.modules, module, raising=False)

    return make


def wrapper_source(name: str, score: str) -> str:
    return f"""
class {name}:
    framework = "{name}"
    def __init__(self, agent): self.agent = agent
    @classmethod
    def match(cls, agent): return {score}
    async def describe(self): ...
    def run(self, turn): ...
    async def aclose(self): ...
"""


async def test_an_installed_package_brings_the_wrapper_of_its_framework(acme: Any) -> None:
    wrapper = wrap(acme.Parrot("Polly"))
    assert type(wrapper).__module__ == "acme_agents.wrapper"
    first = await done(wrapper, "hello")
    assert (await done(wrapper, "again", first.state)).text == "Polly: hello again seen=2"


async def test_ours_can_be_chosen_by_name_over_a_third_partys(acme: Any) -> None:
    wrapper = wrap(acme.Parrot("Polly"), wrapper="callable")
    assert (await done(wrapper)).text == "Polly was called like a function"


async def test_a_third_partys_wrapper_is_checked_by_the_same_function(acme: Any) -> None:
    parrot = acme.Parrot("Polly")
    subject = Subject(make=lambda: parrot, hang="sleep", hanging=parrot.sleeping.wait, fail="fail")
    report = await check_wrapper(subject)
    assert report.ok, str(report)
    assert report.framework == "acme"
    assert {outcome.check for outcome in report.outcomes if outcome.verdict == "absent"} == {
        "streams",
        "tells_of_tools",
        "tells_usage",
        "question_is_answered",
        "peers_are_called",
        "model_is_repointed",
    }


def test_the_installed_wrappers_are_listed_with_what_they_work_with(acme: Any) -> None:
    listed = {found.name: found for found in available()}
    assert set(listed) == {*BUILT_IN, "acme"}
    assert listed["acme"][1:] == ("acme-agents", True, "loaded")
    assert all(found.ok for found in listed.values()), listed
    assert listed["langgraph"].note.startswith("langgraph 1.")


def test_a_wrapper_object_is_returned_as_it_is() -> None:
    wrapper = CallableWrapper(lambda message: "x")
    assert wrap(wrapper) is wrapper


def test_a_wrapper_may_be_given_as_a_class_or_by_its_name() -> None:
    assert isinstance(wrap(lambda message: "x", wrapper=CallableWrapper), CallableWrapper)
    assert isinstance(wrap("openai:http://there/v1#m"), OpenAIEndpointWrapper)
    with pytest.raises(WrapError, match=f"there is no wrapper 'nope'; installed are {', '.join(BUILT_IN)}"):
        wrap(lambda message: "x", wrapper="nope")


class Robot:
    def run(self, message: str) -> str:
        return message


def foreign(module: str) -> object:
    """An object as a framework would make it that is not installed here."""
    return type("Agent", (), {"__module__": module, "__call__": lambda self, prompt: "mixed"})()


@pytest.mark.parametrize(
    ("agent", "words"),
    [
        (3, ["an object of builtins.int", "def agent(message) -> str", ", ".join(BUILT_IN)]),
        (Robot(), ["`lambda message: agent.run(message)`"]),
        (Robot, ["the class", "Robot(...)"]),
        ("http://there", ["the text 'http://there'", "openai:http://host:port/v1#model"]),
        (foreign("strands.agent.agent"), ["a strands agent keeps its history", "def agent(message, history)"]),
        (foreign("smolagents.agents"), ["a smolagents agent keeps its history"]),
    ],
)
def test_what_nothing_fits_is_refused_with_what_was_tried_and_the_remedy(agent: object, words: list[str]) -> None:
    with pytest.raises(WrapError) as refused:
        wrap(agent)
    for word in words:
        assert word in str(refused.value)


def test_a_third_partys_wrapper_wins_over_ours_at_the_same_score(distribution: Any) -> None:
    distribution("Third-Party", "third = third_mod:Third", wrapper_source("Third", "int(callable(agent))"))
    assert wrap(lambda message: "x").framework == "Third"


def test_a_better_fit_of_ours_wins_over_a_third_partys(distribution: Any) -> None:
    distribution("Third-Party", "third = third_mod:Third", wrapper_source("Third", "1"))
    assert wrap("openai:http://there/v1#m").framework == "openai-endpoint"


def test_two_third_parties_that_fit_equally_are_refused_by_name(distribution: Any) -> None:
    distribution("One", "one = one_mod:One", wrapper_source("One", "5"))
    distribution("Two", "two = two_mod:Two", wrapper_source("Two", "5"))
    with pytest.raises(WrapError, match=r"'one' \(of One\) and 'two' \(of Two\) equally well.*wrapper='one'"):
        wrap(lambda message: "x")
    assert wrap(lambda message: "x", wrapper="two").framework == "Two"


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("raise RuntimeError('old api')", ["does not load: RuntimeError: old api", "uninstall 'Bad-Plugin'"]),
        ("import a_framework_that_is_missing", ["ModuleNotFoundError"]),
        ("Bad = 3", ["which is no wrapper class"]),
        (wrapper_source("Bad", "agent.missing"), ["fails to match", "AttributeError"]),
    ],
)
def test_a_broken_plug_in_is_named_with_its_distribution(distribution: Any, source: str, words: list[str]) -> None:
    distribution("Bad-Plugin", "bad = bad_mod:Bad", source)
    with pytest.raises(WrapError, match="'Bad-Plugin'") as refused:
        wrap(lambda message: "x")
    for word in words:
        assert word in str(refused.value)


def test_a_broken_plug_in_is_listed_as_such(distribution: Any) -> None:
    distribution("Bad-Plugin", "bad = bad_mod:Bad", "raise RuntimeError('old api')")
    bad = {found.name: found for found in available()}["bad"]
    assert (bad.distribution, bad.ok) == ("Bad-Plugin", False)
    assert "old api" in bad.note


def test_nothing_of_a_framework_is_imported_to_wrap_a_function() -> None:
    code = (
        "import sys; from agent_env_wrappers.registry import wrap; wrap(lambda message: 'x'); "
        "print(sorted({'agents', 'langgraph', 'langchain_core', 'pydantic_ai', 'openai', 'aiohttp', 'pydantic'}"
        " & set(sys.modules)))"
    )
    ran = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, timeout=60)
    assert ran.stdout.strip() == "[]"
