"""How the model that a TRL trainer trains is asked by the agent whose seat it plays."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from contextlib import contextmanager
from typing import Any

from agent_env.errors import ConfigurationError, ProtocolError
from agent_env.gateway import SeatPolicy
from agent_env.net import request_json
from agent_env.training.place import Place

_NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    "top_p": (None, 1.0),
    "top_k": (None, 0),
    "min_p": (None, 0.0),
    "repetition_penalty": (None, 1.0),
}
"""The trainer's settings that bend the distribution, with the values that do not."""


@contextmanager
def model_served(trainer: Any, name: str, place: Place, *, seed: int) -> Generator[SeatPolicy | None]:
    """Serves the weights of a trainer under a name while the block runs, and gives the policy that seats are played by.

    It is None where the trainer keeps a vLLM server: that one speaks chat completions itself (`vllm_policy`). What is
    sampled has the trainer's temperature, since its loss takes it to have. Raises `ConfigurationError` for what cannot
    be sampled as the trainer says.
    """
    if trainer.use_vllm:
        if trainer.vllm_mode != "server":
            raise ConfigurationError(
                f"vllm_mode={trainer.vllm_mode!r} keeps the engine inside the trainer, where served agents cannot ask "
                'it; start `vllm serve` and set vllm_mode="server"'
            )
        yield None
        return
    if _is_sharded(trainer):
        raise ConfigurationError(
            "weights that processes share (FSDP, DeepSpeed ZeRO-3) are sampled by all of them in step, which agents do not "
            'keep; set use_vllm=True, vllm_mode="server"'
        )
    for setting, neutral in _NEUTRAL.items():
        value = getattr(trainer.args, setting, None)
        if value not in neutral:
            raise ConfigurationError(f"without vLLM the model is sampled as it is, and not with {setting}={value!r}")
    for setting in ("generation_kwargs", "chat_template_kwargs"):
        if value := getattr(trainer.args, setting, None):
            raise ConfigurationError(f"without vLLM nobody reads {setting}, which are {value!r}")
    from agent_env.training.policy import Policy
    from agent_env.training.pretrained import PretrainedLM, PretrainedTokenizer

    processor = trainer.processing_class
    training = trainer.model.training
    policy = Policy(
        name,
        PretrainedLM(trainer.accelerator.unwrap_model(trainer.model), ends=trainer.eos_token_ids),
        PretrainedTokenizer(getattr(processor, "tokenizer", processor)),
        trainable=False,
        seed=seed,
        max_tokens=trainer.max_completion_length,
        batch=trainer.args.per_device_train_batch_size,
        threaded=True,
    )
    policy.version = trainer.state.global_step
    try:
        yield place.serve({name: policy}, {"temperature": trainer.temperature})[name]
    finally:
        # The trainer tells by the mode of its model whether it trains or evaluates.
        trainer.model.train(training)


def _is_sharded(trainer: Any) -> bool:
    deepspeed = getattr(trainer.accelerator.state, "deepspeed_plugin", None)
    return bool(trainer.is_fsdp_enabled) or getattr(deepspeed, "zero_stage", 0) == 3


async def vllm_policy(trainer: Any) -> SeatPolicy:
    """The policy of a trainer whose weights a vLLM server has, which the trainer keeps up to date by itself."""
    args = trainer.args
    url = (args.vllm_server_base_url or f"http://{args.vllm_server_host}:{args.vllm_server_port}").rstrip("/") + "/v1"
    told = await request_json("GET", f"{url}/models", timeout=60.0)
    try:
        model = str(told["data"][0]["id"])
    except (KeyError, IndexError, TypeError):
        raise ProtocolError(f"{url}/models does not tell which model is served, but {told!r:.200}") from None
    settings: dict[str, Any] = {"temperature": trainer.temperature}
    for setting, neutral in _NEUTRAL.items():
        value = getattr(args, setting, None)
        if value not in neutral:
            settings[setting] = value
    settings |= args.generation_kwargs or {}
    if trainer.chat_template_kwargs:
        settings["chat_template_kwargs"] = trainer.chat_template_kwargs
    return SeatPolicy(model, (url,), settings=settings, version=trainer.state.global_step)
