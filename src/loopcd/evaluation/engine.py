"""What the runner needs of whatever generates: prompts in, completions out. Here the local one; others implement the same."""

from __future__ import annotations

import platform
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, is_dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import torch

from loopcd.decoding import Generation, Greedy, Method, NoiseCD, SelfEval, generate
from loopcd.decoding.generate import by_ticks
from loopcd.decoding.self_eval import label_ids
from loopcd.models import LoopedModel, load
from loopcd.models.checkpoint import PICKLED, has_safetensors
from loopcd.models.loading import find
from loopcd.models.stages import checked_loops

SMALL = 50_000_000  # parameters
AHEAD = 4  # batches: more keep the places filled for longer, and the methods waiting for their turns


@dataclass(frozen=True)
class CompletionRequest:
    """What holds for all prompts of a batch. What is drawn for a prompt follows from the seed and its item's number."""

    max_new_tokens: int
    stop: tuple[str, ...]
    question: Callable[[str], str]
    numbers: tuple[int, ...]  # one a prompt; neither the batch nor what else is run changes an item's
    seed: int | None = None
    temperature: float = 0.0
    top_p: float = 1.0
    interrupt: Callable[[], None] | None = None  # asked after every token; what it raises ends the batch
    ended: Callable[[int, Generation], None] | None = None  # may be told of a prompt's text, by its place, as soon as it ends


class Engine(ABC):
    """What generates; each engine is one of these."""

    model: LoopedModel  # its weights need not be in this process
    num_loops: int | None  # None: all of the model's
    batch_size: int  # prompts that are worked on together

    def ahead(self, method: Method) -> int:
        """Batches that are handed over together: more than one where a text that ends makes room for the next, so that no text
        depends on which others it is with."""
        return 1

    @abstractmethod
    def describe(self) -> dict[str, Any]:
        """What generates, for the manifest: all that may change a text."""

    @abstractmethod
    def machine(self) -> dict[str, Any]:
        """Where it runs; recorded, but a run may go on elsewhere."""

    @abstractmethod
    def settings(self, method: Method) -> dict[str, Any]:
        """The method's settings as they are for this model, with the model's presets filled in."""

    @abstractmethod
    def lengths(self, prompts: Sequence[str]) -> list[int]:
        """Tokens of each prompt."""

    def warm_up(self, prompts: Sequence[str]) -> None:  # noqa: B027 (most engines have nothing to do)
        """Do once what only the first call takes time for, so that the first method is not timed with it."""

    @abstractmethod
    def complete(self, prompts: Sequence[str], method: Method, request: CompletionRequest) -> list[Generation]: ...


@dataclass(frozen=True)
class LocalEngine(Engine):
    """`loopcd.generate` in this process."""

    model: LoopedModel
    tokenizer: Any
    name: str
    folder: Path | None = None
    num_loops: int | None = None
    batch_size: int = 16
    threads: int | None = None  # None: as many as torch takes

    @classmethod
    def load(
        cls,
        name: str,
        dtype: str | None = None,
        device: str | None = None,
        num_loops: int | None = None,
        batch_size: int | None = None,
        allow_pickle: bool = False,
        quantize: str | None = None,
    ) -> LocalEngine:
        """A model by name, folder or hub id; batches of 64 for small models and of 16 for others, unless given."""
        if batch_size is not None and batch_size < 1:
            raise ValueError(f"--batch-size {batch_size}: a whole number of at least 1")
        folder = find(name, allow_pickle=allow_pickle)
        model, tokenizer = load(folder, dtype=dtype, device=device, allow_pickle=allow_pickle, quantize=quantize)
        small = sum(weight.numel() for weight in (*model.parameters(), *model.buffers())) < SMALL
        loops, rows = checked_loops(num_loops, model.num_loops), batch_size or (64 if small else 16)
        # threads that wait for each other at every small product take longer than one that does not wait
        return cls(model, tokenizer, name, folder, loops, rows, 1 if small and model.device.type == "cpu" else None)

    def describe(self) -> dict[str, Any]:
        return {
            "engine": "local",
            "model": self.name,
            "model_type": self.model.config.model_type,
            "weights": {} if self.folder is None else weights_hash(self.folder),
            "loops": self.num_loops or self.model.num_loops,
            "dtype": self.model.quantized or str(self.model.dtype).removeprefix("torch."),
            "batch_size": self.batch_size,
        }

    def machine(self) -> dict[str, Any]:
        device = self.model.device
        name = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.machine()
        return {"device": device.type, "device_name": name, "threads": self.threads or torch.get_num_threads()}

    def settings(self, method: Method) -> dict[str, Any]:
        if isinstance(method, SelfEval):
            label_ids(self.tokenizer)  # refused here rather than after the other methods' first batch
        return plain(method.settled(self.model, self.num_loops))

    def lengths(self, prompts: Sequence[str]) -> list[int]:
        if self.tokenizer is None:
            raise ValueError(f"{self.name} came without a tokenizer, so it cannot read the prompts")
        found = [len(self.tokenizer(prompt, verbose=False).input_ids) for prompt in prompts]  # a length is judged here
        if max(found) >= self.model.max_context:
            raise ValueError(
                f"the longest prompt of this task has {max(found)} tokens, but {self.name} has a context of "
                f"{self.model.max_context}: the task needs another model"
            )
        return found

    def ahead(self, method: Method) -> int:
        return AHEAD if by_ticks(method, self.model, self.batch_size) else 1

    def warm_up(self, prompts: Sequence[str]) -> None:
        with using_threads(self.threads):
            generate(self.model, self.tokenizer, list(prompts), Greedy(), max_new_tokens=2, num_loops=self.num_loops)

    def complete(self, prompts: Sequence[str], method: Method, request: CompletionRequest) -> list[Generation]:
        drawn_otherwise = isinstance(method, SelfEval) or not self.model.has_initial_state
        ids = [self.tokenizer(prompt).input_ids for prompt in prompts]  # also what a chat template made, as the authors did
        with using_threads(self.threads):
            return generate(
                self.model,
                self.tokenizer,
                ids,
                seeded(method, request),
                max_new_tokens=request.max_new_tokens,
                stop=request.stop,
                temperature=request.temperature,
                top_p=request.top_p,
                seed=request.seed or 0,
                init_seed=None if drawn_otherwise else request.seed,
                batch_size=self.batch_size,
                num_loops=self.num_loops,
                numbers=request.numbers,
                interrupt=request.interrupt,
                ended=request.ended,
            )


def seeded(method: Method, request: CompletionRequest) -> Method:
    """Methods with draws of their own get the run's seed."""
    if isinstance(method, NoiseCD):
        return replace(method, seed=request.seed or 0)
    if isinstance(method, SelfEval):  # it counts its candidates up from its seed
        return replace(method, seed=1000 * (request.seed or 0), question=request.question)
    return method


@contextmanager
def using_threads(number: int | None) -> Iterator[None]:
    """So many threads of torch within; None: as many as it takes."""
    before = torch.get_num_threads()
    torch.set_num_threads(number or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def plain(settings: Any) -> Any:
    """A frozen set of settings as JSON; what is None or a function is left out."""
    if not is_dataclass(settings):
        return settings
    values = {field.name: plain(getattr(settings, field.name)) for field in fields(settings)}
    return {name: value for name, value in values.items() if value is not None and not callable(value)}


def weights_hash(folder: Path) -> dict[str, str]:
    """A fingerprint of the weights, the configuration and the tokenizer."""
    patterns = ["*.safetensors", "config.json", "generation_config.json", "tokenizer*", "special_tokens_map.json"]
    patterns += ["vocab*", "merges.txt", "added_tokens.json", "*.model"]  # of tokenizers without a file of their own name
    if not has_safetensors(folder):
        patterns += PICKLED
    files = [path for pattern in patterns for path in sorted(folder.glob(pattern)) if path.is_file()]
    digest = sha256()
    for path in dict.fromkeys(files):
        digest.update(f"{path.name}:{path.stat().st_size}\n".encode())
        with path.open("rb") as file:
            while block := file.read(1 << 24):
                digest.update(block)
    return {"sha256": digest.hexdigest()}
