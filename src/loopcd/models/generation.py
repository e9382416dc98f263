"""How transformers' `generate` runs a looped model: its own cache, decoding methods as `custom_generate`."""

import functools
import inspect
from collections.abc import Callable
from typing import Any

from transformers import GenerationMixin
from transformers.generation.stopping_criteria import StoppingCriteriaList, StopStringCriteria

from loopcd.models.cache import LoopCache
from loopcd.models.memory import check_memory


def heard_loops(num_loops: int | None, options: dict[str, Any]) -> int | None:
    """`num_loops`, which the public Huginn code calls `num_steps`; that name is taken out of the options."""
    num_steps = options.pop("num_steps", None)
    if num_steps is None:
        return num_loops
    if num_loops not in (None, num_steps):
        raise ValueError(f"num_steps={num_steps!r} is another name of num_loops, which is {num_loops!r}: give one of them")
    return num_steps


def checked_loops(num_loops: int | None, default: int) -> int:
    if num_loops is None:
        return default
    if isinstance(num_loops, bool) or not isinstance(num_loops, int) or num_loops < 1:
        raise ValueError(f"num_loops={num_loops!r}: a whole number of loops, at least 1")
    return num_loops


def check_cache(given: Any) -> None:
    if given is not None and not isinstance(given, LoopCache):
        raise ValueError(f"past_key_values is a {type(given).__name__}: a looped model needs a loopcd LoopCache")


class LoopedGenerationMixin(GenerationMixin):
    """What a looped model does otherwise than other models when `generate` is called."""

    def generate(self, *args: Any, custom_generate: str | Callable | None = None, **kwargs: Any) -> Any:
        """transformers' `generate`; a callable `custom_generate` also gets the streamer, the tokenizer and stop strings.

        transformers drops these three when the decoding loop is a callable, so they are bound to it here.
        """
        if "num_steps" in kwargs:
            kwargs["num_loops"] = heard_loops(kwargs.get("num_loops"), kwargs)
        if isinstance(custom_generate, type):
            name = custom_generate.__name__
            raise ValueError(f"custom_generate={name}: a method with its settings, not its class, as in {name}()")
        if not callable(custom_generate):
            return super().generate(*args, custom_generate=custom_generate, **kwargs)  # pyright: ignore[reportAttributeAccessIssue]
        if kwargs.get("assistant_model") is not None:
            raise ValueError("assistant_model has no effect with a decoding method: leave it out")
        accepted = inspect.signature(custom_generate).parameters
        bound = {name: kwargs.get(name) for name in ("streamer", "tokenizer") if name in accepted}
        tokenizer = kwargs.pop("tokenizer", None)
        stop_strings = kwargs.pop("stop_strings", None)
        if stop_strings is not None:
            if tokenizer is None:
                raise ValueError("stop_strings needs the tokenizer: generate(..., tokenizer=tokenizer)")
            criteria = kwargs.pop("stopping_criteria", None) or []
            kwargs["stopping_criteria"] = StoppingCriteriaList([*criteria, StopStringCriteria(tokenizer, stop_strings)])
        chosen = functools.partial(custom_generate, **bound)
        return super().generate(*args, custom_generate=chosen, **kwargs)  # pyright: ignore[reportAttributeAccessIssue]

    def _prepare_cache_for_generation(
        self: Any, generation_config: Any, model_kwargs: dict[str, Any], *args: Any, **kwargs: Any
    ) -> None:
        given = model_kwargs.get("past_key_values")
        if given is not None:
            check_cache(given)
            return
        if generation_config.assistant_early_exit is not None:
            raise ValueError(
                f"assistant_early_exit={generation_config.assistant_early_exit}: a looped model stops at a loop, not at a "
                "layer; draft with loopcd.SelfDraft(loops=...)"
            )
        if generation_config.cache_implementation not in (None, "dynamic"):
            raise ValueError(
                f"cache_implementation={generation_config.cache_implementation!r}: a looped model keeps one slot per "
                "(loop, layer) in its own cache; leave it unset"
            )
        if generation_config.use_cache is not False:
            # transformers gives no mask where nothing is padding; both are already repeated for beams and sequences
            given = [model_kwargs[name] for name in ("attention_mask", "position_ids") if model_kwargs.get(name) is not None]
            if given:
                rows, tokens = given[0].shape[0], max(given[0].shape[-1], generation_config.max_length or 0)
                loops = checked_loops(model_kwargs.get("num_loops"), self.num_loops)
                check_memory(self, tokens=tokens, batch=rows, num_loops=loops)
            model_kwargs["past_key_values"] = self.new_cache(limit=generation_config.max_length)
