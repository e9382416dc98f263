"""lm-eval's model `loopcd`: its HF model with a decoding method, so that any of its tasks runs with LoopCD.

Importing this registers it; lm-eval itself does not look for models elsewhere. Generation goes through the method; requests
for log-likelihoods are answered by the expert, that is the model with all its loops: a contrast is a rule for choosing
tokens, not a distribution over texts. Batching, truncation and stop strings are lm-eval's; where nothing is drawn, the texts
of a batch go on each at its own loop.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers.generation.stopping_criteria import StoppingCriteriaList

from loopcd.decoding.generate import by_ticks, generate
from loopcd.decoding.registry import METHODS, settings
from loopcd.decoding.texts import StopTexts
from loopcd.evaluation.engine import AHEAD
from loopcd.evaluation.plan import MethodSpec
from loopcd.models.loading import find, load

try:
    from lm_eval.api.registry import register_model
    from lm_eval.models import huggingface
except ImportError as missing:
    raise ImportError(f"lm-eval is not installed ({missing}): pip install 'loopcd[eval]'") from missing

HFLM: Any = huggingface.HFLM  # whose type lm-eval's decorator hides
log = logging.getLogger("loopcd")
COMMANDS = ("run", "ls", "validate")  # of lm-eval's command line
_USUAL = {"attention_mask", "do_sample", "temperature", "use_cache"}  # settings of a text without draws
_UNSUPPORTED = ("parallelize", "tp_plan", "peft", "delta", "autogptq", "gptqmodel", "gguf_file", "quantization_config")


class LoopedLM(HFLM):
    """`pretrained` is a built-in model, a folder or a hub id; `method` one of `decoding.registry.METHODS`.

    Further arguments are the method's settings, as in `loopcd eval --methods` (amateur_loop=8, strength=0.2, …), `num_loops`,
    and those of lm-eval's HF model (dtype, device, batch_size, max_length, …).
    """

    def __init__(
        self,
        pretrained: str,
        method: str = "loopcd",
        num_loops: int | None = None,
        device: str | None = None,
        **options: Any,
    ) -> None:
        self.method, others = _method(method, options)
        self._num_loops = num_loops
        self._rows: int | None = None  # texts at once, while rows need not keep step
        if others.get("revision") not in (None, "main"):
            raise ValueError(f"revision={others['revision']!r}: download it and give the folder as pretrained=")
        if others.pop("trust_remote_code", False):
            log.warning("trust_remote_code: not needed, and no code of a checkpoint is ever run here")
        place = device or ("cuda" if torch.cuda.is_available() else "cpu")
        super().__init__(pretrained=str(find(pretrained)), backend="causal", device=place, **others)
        self.method_reserve = self.method.reserve(self.tokenizer)

    def _create_model(self, pretrained: str, dtype: Any = "auto", **options: Any) -> None:
        used = [name for name in _UNSUPPORTED if options.get(name)]
        if used:
            raise ValueError(f"{used[0]}={options[used[0]]!r} is not supported for looped models here")
        known = (*_UNSUPPORTED, "revision", "trust_remote_code", "subfolder", "gpus")
        foreign = [name for name in options if name not in known and not name.startswith(("max_", "offload_"))]
        if foreign:
            raise ValueError(f"{foreign[0]}={options[foreign[0]]!r} is no argument of this model and no setting of its method")
        self._model = load(
            pretrained, dtype=None if dtype in ("auto", None) else dtype, device=self._device, num_loops=self._num_loops
        )[0]

    @property
    def max_length(self) -> int:
        return self._max_length or self.model.max_context - self.method_reserve

    def generate_until(self, requests: list[Any], *arguments: Any, **options: Any) -> list[str]:
        """More prompts are handed over at a time than are in memory, where a text that ends makes room for the next."""
        rows = self.batch_size_per_gpu
        self._rows = rows if isinstance(rows, int) and by_ticks(self.method, self.model, rows) else None
        try:
            if self._rows is not None:
                self.batch_size_per_gpu = AHEAD * self._rows
            return super().generate_until(requests, *arguments, **options)
        finally:
            self.batch_size_per_gpu = rows

    def _model_generate(self, context: Tensor, max_length: int, stop: list[str], **options: Any) -> Tensor:
        if self._rows is not None and not options.get("do_sample") and set(options) <= _USUAL:
            return self._together(context, max_length, stop, options["attention_mask"])
        # lm-eval's stopping criteria remember the rows of a batch, and cannot judge a drafted row by itself; the texts are
        # cut at the stop strings afterwards in any case
        if not options.get("do_sample"):
            options.pop("temperature", None)
        return self.model.generate(
            input_ids=context,
            max_length=max_length,
            stopping_criteria=StoppingCriteriaList([StopTexts(self.tokenizer, stop, context.shape[1])]),
            pad_token_id=self.tokenizer.pad_token_id,
            custom_generate=self.method,
            tokenizer=self.tokenizer,
            **options,
        )

    def _together(self, context: Tensor, max_length: int, stop: list[str], mask: Tensor) -> Tensor:
        """[batch, context and what follows], each row as it is alone."""
        prompts = [row[seen.bool()].tolist() for row, seen in zip(context, mask, strict=True)]
        room = max_length - context.shape[1]
        made = generate(
            self.model,
            self.tokenizer,
            prompts,
            self.method,
            max_new_tokens=room,
            stop=[each for each in stop if each],
            batch_size=self._rows or 1,
        )
        longest = max(len(each.token_ids) for each in made)
        whole = context.new_full((len(made), context.shape[1] + longest), self.tokenizer.pad_token_id)
        whole[:, : context.shape[1]] = context
        for row, each in zip(whole, made, strict=True):
            row[context.shape[1] :][: len(each.token_ids)] = context.new_tensor(each.token_ids)
        return whole


register_model("loopcd")(LoopedLM)


def _method(name: str, options: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """The method, and the options that are none of its settings."""
    if name not in METHODS:
        raise ValueError(f"method={name!r}: one of {', '.join(METHODS)}")
    own = settings(name)
    foreign = [key for key in options if key not in own and any(key in settings(kind) for kind in METHODS)]
    if foreign:
        raise ValueError(f"{foreign[0]}={options[foreign[0]]!r} is no setting of {name}: those are {', '.join(own) or 'none'}")
    spec = MethodSpec(name, tuple((key, value) for key, value in options.items() if key in own))
    return spec.build(), {key: value for key, value in options.items() if key not in own}


def run_command_line(arguments: Sequence[str]) -> None:
    """lm-eval's own command line with the model `loopcd` known to it, and taken where none is named."""
    from lm_eval.__main__ import cli_evaluate

    command, rest = ("run", arguments) if not arguments or arguments[0] not in COMMANDS else (arguments[0], arguments[1:])
    named = any(part in ("--model", "-M", "--config", "-C") or part.startswith(("--model=", "--config=")) for part in rest)
    if any(part.startswith(("--use_c", "-c")) for part in rest):  # also shortened, as lm-eval's parser takes it
        raise ValueError(
            "--use_cache: lm-eval's cache is read as pickles, which can run code; `loopcd eval` goes on without one"
        )
    model = ["--model", "loopcd"] if command == "run" and not named else []
    before, sys.argv = sys.argv, ["lm-eval", command, *model, *rest]
    try:
        cli_evaluate()
    finally:
        sys.argv = before
