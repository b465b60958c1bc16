"""A policy: a model with its tokenizer, its optimizer and a version that every update raises."""

from __future__ import annotations

import json
import threading
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Self

import torch

from agent_env.errors import ConfigurationError
from agent_env.training.folders import read_object
from agent_env.training.language import LanguageModel, Tokenizer
from agent_env.training.rows import Row
from agent_env.training.sampling import Completion, Prompt, sample
from agent_env.training.tiny import KIND, load_tiny
from agent_env.training.update import Settings, UpdateStats, train_step

_SMALL = 10_000_000
"""Below so many weights an optimizer handles all at once: that is faster, and the memory for it is little."""


class Policy:
    """What plays a seat and learns from what it played.

    Sampling and updating share the weights in memory and wait for each other, so no completion mixes two versions. A
    frozen policy (`trainable=False`) samples and never changes.

    `max_tokens` is how long a completion may be that does not say, `batch` how many prompts are sampled at a time.
    `threaded` says that the model is too large for an event loop to wait for: it is served from a thread.
    """

    def __init__(
        self,
        name: str,
        model: LanguageModel,
        tokenizer: Tokenizer,
        *,
        settings: Settings | None = None,
        trainable: bool = True,
        seed: int = 0,
        max_tokens: int = 16,
        batch: int = 256,
        threaded: bool = False,
    ) -> None:
        self.name = name
        self.model = model
        self.tokenizer = tokenizer
        self.settings = settings or Settings()
        self.trainable = trainable
        self.max_tokens = max_tokens
        self.batch = batch
        self.threaded = threaded
        self.version = 0
        self.lock = threading.RLock()
        self._generator = torch.Generator(model.device).manual_seed(seed)
        self._optimizer = self._make_optimizer() if trainable else None

    def sample(self, prompts: Sequence[Prompt]) -> list[Completion]:
        """Completes a batch of prompts with the present version."""
        with self.lock:
            return sample(self.model, prompts, self._generator)

    def update(self, rows: Sequence[Row]) -> UpdateStats | None:
        """Learns from the policy's own rows, each with its advantage; None if it is frozen or there are none.

        Rows of which none has an advantage leave the weights as they are: the entropy bonus alone, which Adam scales up
        to whole steps, would lead away from what was learned.
        """
        if not self.trainable:
            return None
        with self.lock:
            if self._optimizer is None:
                self._optimizer = self._make_optimizer()
            teaching = any(row.advantage for row in rows)
            stats = train_step(self.model, self._optimizer, rows, self.settings, step=teaching)
            if stats is not None:
                self.version += 1
        return stats

    def save(self, directory: str | Path) -> None:
        """Writes the model, its tokenizer, and all that learning goes on from: a folder that `load` reads.

        The model is as its kind writes it (`save_pretrained` for one of Hugging Face), so the folder is one of a model
        for others as well. `policy.json` and `learner.pt` are what is ours.
        """
        folder = Path(directory)
        folder.mkdir(parents=True, exist_ok=True)
        with self.lock:
            self.model.save(folder, self.tokenizer)
            learner = {
                "optimizer": None if self._optimizer is None else self._optimizer.state_dict(),
                "generator": self._generator.get_state(),
                "device": self.model.device.type,
            }
            torch.save(learner, folder / "learner.pt")
            about = {
                "name": self.name,
                "version": self.version,
                "trainable": self.trainable,
                "max_tokens": self.max_tokens,
                "batch": self.batch,
                "threaded": self.threaded,
                "context": self.model.context,
                "settings": asdict(self.settings),
            }
            (folder / "policy.json").write_text(json.dumps(about, indent=2), "utf-8")

    @classmethod
    def load(cls, directory: str | Path, *, device: str | None = None) -> Policy:
        """Reads a policy that `save` wrote, to go on exactly where it was.

        Raises `ConfigurationError` for a folder that holds none.
        """
        folder = Path(directory)
        try:
            about = _read_about(folder / "policy.json")
        except FileNotFoundError:
            raise ConfigurationError(
                f"{str(folder)!r} holds no policy; for a model of Hugging Face there is load_pretrained(name, folder)"
            ) from None
        model, tokenizer = load_model(
            folder, device=device, trainable=about["trainable"], dtype="auto", context=about["context"]
        )
        policy = Policy(
            about["name"],
            model,
            tokenizer,
            settings=Settings(**about["settings"]),
            trainable=about["trainable"],
            max_tokens=about["max_tokens"],
            batch=about["batch"],
            threaded=about["threaded"],
        )
        policy.version = about["version"]
        policy.restore(folder)
        return policy

    def restore(self, directory: str | Path) -> Self:
        """Takes the state of optimizer and generator from a folder that `save` wrote."""
        learner = torch.load(Path(directory) / "learner.pt", map_location=self.model.device, weights_only=True)
        if learner["optimizer"] is not None:
            self._optimizer = self._make_optimizer()
            self._optimizer.load_state_dict(learner["optimizer"])
        if learner["device"] == self.model.device.type:  # each kind of device has its own kind of generator
            self._generator.set_state(learner["generator"].cpu())
        return self

    def _make_optimizer(self) -> torch.optim.Optimizer:
        weights = [weight for weight in self.model.parameters() if weight.requires_grad]
        small = sum(weight.numel() for weight in weights) < _SMALL
        return torch.optim.Adam(
            weights, lr=self.settings.learning_rate, betas=(0.9, 0.95), foreach=True if small else None
        )


_WRITTEN = ("name", "version", "trainable", "max_tokens", "batch", "threaded", "context", "settings")


def _read_about(path: Path) -> dict[str, Any]:
    try:
        about = read_object(path)
    except ValueError as error:
        raise ConfigurationError(f"{str(path)!r} {error}; take another folder") from None
    missing = [name for name in _WRITTEN if name not in about]
    if missing:
        raise ConfigurationError(
            f"{str(path)!r} does not say {missing[0]!r}, as `Policy.save` writes it; take another folder"
        )
    return about


def load_model(
    directory: str | Path,
    *,
    device: str | None = None,
    trainable: bool = True,
    dtype: str | None = None,
    context: int | None = None,
) -> tuple[LanguageModel, Tokenizer]:
    """Reads a model and its tokenizer: a tiny one of ours, one of Hugging Face, or an adapter (LoRA) for one.

    The options are those of `load_pretrained`; a tiny model is as it was saved, on the CPU.

    Raises `ConfigurationError` for a folder without a model, or when what it takes is not installed.
    """
    folder = Path(directory)
    if not folder.is_dir():
        raise ConfigurationError(f"there is no folder {str(folder)!r} to read a model from")
    if is_tiny(folder):
        return load_tiny(folder)
    from agent_env.training.pretrained import read_pretrained

    return read_pretrained(folder, device=device, trainable=trainable, dtype=dtype, context=context)


def is_tiny(directory: str | Path) -> bool:
    """Tells whether a folder holds a tiny model of ours."""
    try:
        config = json.loads((Path(directory) / "config.json").read_text("utf-8"))
    except (FileNotFoundError, ValueError):
        return False
    return isinstance(config, dict) and config.get("model_type") == KIND
