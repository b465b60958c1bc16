"""Policies of Hugging Face models: any causal language model in a folder, trained whole or by an adapter (LoRA).

Needs the extra `agent-env[hf]`. Nothing is downloaded: a model is a folder on this machine.
"""

from __future__ import annotations

import inspect
import json
import logging
import warnings
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import torch

from agent_env.errors import ConfigurationError, InvalidArguments
from agent_env.training.policy import Policy
from agent_env.training.update import Settings

try:
    import transformers
except ImportError as error:  # pragma: no cover - the extra is installed where this is tested
    raise ConfigurationError("Hugging Face models need transformers: pip install 'agent-env[hf]'") from error

log = logging.getLogger("agent_env.training")

Message: TypeAlias = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Lora:
    """An adapter of low rank on every linear layer (LoRA, arXiv 2106.09685 §4.1): `alpha / rank` scales what it adds.

    There is no dropout: what is sampled from and what is trained must be the same distribution.
    """

    rank: int = 16
    alpha: int = 32


class PretrainedTokenizer:
    """A tokenizer of Hugging Face, with the chat template of its model."""

    def __init__(self, tokenizer: Any) -> None:
        if not tokenizer.chat_template:
            raise ConfigurationError(
                f"the tokenizer in {tokenizer.name_or_path!r} has no chat template, so nobody knows how its model is "
                "spoken to; pass chat_template=… (Jinja), or put a chat_template.jinja into the folder"
            )
        self.inner = tokenizer
        self._unknown: set[str] = set()
        # Marks that somebody writes into a message, such as the end of one, must stay text.
        able = "sanitize_control_tokens" in inspect.signature(tokenizer.apply_chat_template).parameters
        self._options = {"sanitize_control_tokens": True} if able else {}

    def render(self, messages: Sequence[Message]) -> list[int]:
        """The prompt of a chat by the template; raises `InvalidArguments` for what is no text or what it refuses."""
        chat = [{**message, "content": _text(message)} for message in messages]
        try:
            ids: list[int] = self.inner.apply_chat_template(
                chat, add_generation_prompt=True, tokenize=True, return_dict=False, **self._options
            )
        except Exception as error:
            # Templates raise what they like, such as for roles that do not alternate.
            raise InvalidArguments(f"the model's chat template takes no such messages: {error}") from error
        if self.inner.unk_token_id is not None and self.inner.unk_token_id in ids:
            self._warn(word for message in chat for word in message["content"].split())
        return ids

    def decode(self, ids: Iterable[int]) -> str:
        """The text of what was sampled, without special tokens."""
        text: str = self.inner.decode(list(ids), skip_special_tokens=True, clean_up_tokenization_spaces=False)
        return text

    def name(self, token: int) -> str:
        """The text of one token, special ones too."""
        text: str = self.inner.decode([token], clean_up_tokenization_spaces=False)
        return text

    def _warn(self, words: Iterable[str]) -> None:
        """Says once of each word that the model cannot read it: otherwise it is a reward that never comes."""
        unknown = self.inner.unk_token_id
        new = {
            word
            for word in set(words) - self._unknown
            if unknown in self.inner(word, add_special_tokens=False)["input_ids"]
        }
        if new:
            self._unknown |= new
            log.warning("the tokenizer does not know %s; the model sees only that something was there", sorted(new))


class PretrainedLM:
    """A causal language model of Hugging Face as sampler and update see it, with or without an adapter."""

    def __init__(self, model: Any, *, ends: Iterable[int], context: int | None = None) -> None:
        self.inner = model.eval()
        self._ends = frozenset(ends)
        self._context = context or _context(model.config)
        base = model.get_base_model() if _is_adapted(model) else model
        accepted = inspect.signature(base.forward).parameters
        self._positions = "position_ids" in accepted
        self._keeps = "logits_to_keep" in accepted
        # `past_key_values` is what releases of transformers before `cache` call it.
        self._cache = "cache" if "cache" in accepted else "past_key_values"

    @property
    def context(self) -> int:
        """The longest sequence in tokens."""
        return self._context

    @property
    def ends(self) -> frozenset[int]:
        """The tokens that end a message, by the model's generation settings and its tokenizer."""
        return self._ends

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        device: torch.device = self.inner.device
        return device

    @property
    def adapted(self) -> bool:
        """Tells whether an adapter is trained instead of the model."""
        return _is_adapted(self.inner)

    def __call__(
        self, tokens: torch.Tensor, padding: torch.Tensor | None = None, cache: Any = None, *, last: bool = False
    ) -> torch.Tensor:
        """The logits of the token after each one, or after the `last` one, in float32."""
        seen = 0 if cache is None else int(cache.get_seq_length())
        rows, count = tokens.shape
        given: dict[str, Any] = {"input_ids": tokens, self._cache: cache, "use_cache": cache is not None}
        if padding is None:
            given["attention_mask"] = torch.ones(rows, seen + count, dtype=torch.long, device=tokens.device)
        else:
            mask = (~padding).long()
            given["attention_mask"] = mask
            if self._positions:
                given["position_ids"] = (mask.cumsum(dim=1) - 1).clamp(min=0)[:, -count:]
        if last and self._keeps:
            given["logits_to_keep"] = 1
        logits: torch.Tensor = self.inner(**given).logits
        return (logits[:, -1:] if last else logits).float()

    def new_cache(self) -> Any:
        """A key-value cache that has seen nothing."""
        return transformers.DynamicCache(config=self.inner.config)

    def parameters(self) -> Iterator[torch.nn.Parameter]:
        """The weights, or those of the adapter among weights that stay."""
        found: Iterator[torch.nn.Parameter] = self.inner.parameters()
        return found

    def state_dict(self) -> Mapping[str, Any]:
        """The weights by name, those of the adapter among them."""
        found: Mapping[str, Any] = self.inner.state_dict()
        return found

    def load_state_dict(self, state_dict: Mapping[str, Any], /) -> Any:
        """Takes weights that `state_dict` gave."""
        return self.inner.load_state_dict(state_dict)

    def save(self, directory: Path, tokenizer: Any) -> None:
        """Writes model (or adapter alone) and tokenizer with `save_pretrained`."""
        with _quiet():
            self.inner.save_pretrained(directory)
        tokenizer.inner.save_pretrained(directory)

    def merged(self) -> Any:
        """The model with its adapter worked in, for servers that take no adapters; this one stays as it is."""
        if not self.adapted:
            return self.inner
        from copy import deepcopy

        return deepcopy(self.inner).merge_and_unload()


def load_pretrained(
    name: str,
    directory: str | Path,
    *,
    lora: Lora | bool = False,
    device: str | None = None,
    dtype: str | None = None,
    settings: Settings | None = None,
    trainable: bool = True,
    seed: int = 0,
    max_tokens: int = 256,
    batch: int = 32,
    context: int | None = None,
    chat_template: str | None = None,
) -> Policy:
    """Makes a policy of a folder with a causal language model, such as `save_pretrained` writes.

    | argument | meaning |
    |---|---|
    | `lora` | train an adapter (rank 16, or a `Lora`) and leave the model as it is |
    | `device` | "cpu", "cuda", …; the first GPU where there is one |
    | `dtype` | "float32", "bfloat16", …; default: float32 where all weights learn, for small steps are lost in less, and else that of the files |
    | `settings` | how it learns; default: 1e-5 (LoRA 1e-4) without an entropy bonus, 2,048 tokens at a time |
    | `max_tokens`, `batch` | how long a completion may be that does not say, and how many are sampled at a time |
    | `context` | the longest sequence, if less than the model's |
    | `chat_template` | Jinja, in place of the tokenizer's |

        policy = load_pretrained("manager", "models/SmolLM2-135M-Instruct", lora=True)

    Raises `ConfigurationError` for a folder without a model, or for one without a chat template.
    """
    model, tokenizer = read_pretrained(
        directory,
        device=device,
        dtype=dtype,
        trainable=trainable,
        lora=Lora() if lora is True else lora or None,
        seed=seed,
        context=context,
        chat_template=chat_template,
    )
    return Policy(
        name,
        model,
        tokenizer,
        settings=settings or usual_settings(adapted=model.adapted),
        trainable=trainable,
        seed=seed,
        max_tokens=max_tokens,
        batch=batch,
        threaded=True,
    )


def usual_settings(*, adapted: bool) -> Settings:
    """How a pretrained model learns where nothing else is said: carefully, for it has something to lose."""
    return Settings(learning_rate=1e-4 if adapted else 1e-5, entropy=0.0, batch_tokens=2048)


def read_pretrained(
    directory: str | Path,
    *,
    device: str | None = None,
    dtype: str | None = None,
    trainable: bool = True,
    lora: Lora | None = None,
    seed: int = 0,
    context: int | None = None,
    chat_template: str | None = None,
) -> tuple[PretrainedLM, PretrainedTokenizer]:
    """Reads a model and its tokenizer, or an adapter with the model that it is for; a new adapter where `lora` says
    so."""
    folder = Path(directory)
    adapter = folder / "adapter_config.json"
    base = Path(_json(adapter)["base_model_name_or_path"]) if adapter.exists() else folder
    if not (base / "config.json").is_file():
        what = f"{str(base)!r}, which the adapter in {str(folder)!r} is for," if adapter.exists() else repr(str(base))
        raise ConfigurationError(
            f"{what} holds no model; it needs a config.json and weights, as save_pretrained writes"
        )
    adapted = adapter.exists() or lora is not None
    if dtype is None:
        dtype = "float32" if trainable and not adapted else "auto"
    elif dtype != "auto" and not isinstance(getattr(torch, dtype, None), torch.dtype):
        raise ConfigurationError(f"there is no dtype {dtype!r}; there are float32, bfloat16, float16 and auto")
    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    with _quiet(), _refused(folder):
        model: Any = transformers.AutoModelForCausalLM.from_pretrained(base, dtype=dtype, local_files_only=True)
        kept = folder if (folder / "tokenizer_config.json").exists() else base
        inner: Any = transformers.AutoTokenizer.from_pretrained(kept, local_files_only=True)
    if chat_template is not None:
        inner.chat_template = chat_template
    ends = _ends(model, inner)
    tokenizer = PretrainedTokenizer(inner)
    if adapter.exists():
        with _of_its_time():
            model = _peft().PeftModel.from_pretrained(model, folder, is_trainable=trainable)
    elif lora is not None:
        model = _adapt(model, lora, base, seed)
    if not trainable:
        model.requires_grad_(False)
    return PretrainedLM(model.to(device), ends=ends, context=context), tokenizer


def _adapt(model: Any, lora: Lora, base: Path, seed: int) -> Any:
    peft = _peft()
    config = peft.LoraConfig(
        r=lora.rank, lora_alpha=lora.alpha, lora_dropout=0.0, target_modules="all-linear", task_type="CAUSAL_LM"
    )
    # Where its model is, for whoever reads the adapter from another folder.
    model.name_or_path = str(base.resolve())
    with torch.random.fork_rng(devices=[]), _of_its_time():
        torch.manual_seed(seed)
        return peft.get_peft_model(model, config)


def _peft() -> Any:
    try:
        import peft
    except ImportError as error:  # pragma: no cover - the extra is installed where this is tested
        raise ConfigurationError("adapters need peft: pip install 'agent-env[hf]'") from error
    return peft


def _ends(model: Any, tokenizer: Any) -> set[int]:
    settings = getattr(model, "generation_config", None)
    given: Any = getattr(settings, "eos_token_id", None)
    ends: set[Any] = set(given) if isinstance(given, list) else {given}
    ends = (ends | {tokenizer.eos_token_id}) - {None}
    if not ends:
        raise ConfigurationError(
            f"nothing says which token ends a message of the model in {tokenizer.name_or_path!r}; set eos_token in its "
            "tokenizer_config.json, or eos_token_id in its generation_config.json"
        )
    return {int(end) for end in ends}


def _context(config: Any) -> int:
    found = getattr(config.get_text_config(), "max_position_embeddings", None)
    if not isinstance(found, int):
        raise ConfigurationError(
            f"a {config.model_type!r} model does not say how many tokens it sees; pass context=… to bound it"
        )
    return found


def _is_adapted(model: Any) -> bool:
    return hasattr(model, "peft_config") and hasattr(model, "get_base_model")


def _text(message: Message) -> str:
    content = message.get("content")
    if isinstance(message.get("role"), str):
        if isinstance(content, str):
            return content
        if content is None and message.get("tool_calls"):
            return ""
        if isinstance(content, list) and all(
            isinstance(p, Mapping) and isinstance(p.get("text"), str) for p in content
        ):
            return "".join(part["text"] for part in content)
    raise InvalidArguments(f"a message must have a role and a text, not {message!r:.200}")


def _json(path: Path) -> Any:
    return json.loads(path.read_text("utf-8"))


@contextmanager
def _of_its_time() -> Generator[None]:
    """Hides that peft still asks for what transformers has since renamed: nobody who trains can do anything about it."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "`is_gradient_checkpointing` is deprecated", FutureWarning)
        yield


@contextmanager
def _refused(folder: Path) -> Generator[None]:
    """Says which folder cannot be read as a model, and why."""
    try:
        yield
    except (OSError, ValueError, ImportError) as error:
        raise ConfigurationError(f"{str(folder)!r} cannot be read as a causal language model: {error}") from error


@contextmanager
def _quiet() -> Generator[None]:
    """Shows no progress bars of the library's own while the block runs."""
    from transformers.utils import logging

    library: Any = logging
    shown = library.is_progress_bar_enabled()
    library.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            library.enable_progress_bar()
