"""Conversations as prompts: messages go once through the tokenizer's template, and an answer ends where a turn does."""

from collections.abc import Mapping, Sequence
from typing import Any

from transformers import PreTrainedTokenizerBase

from loopcd.decoding.thinking import template_options

Messages = Sequence[Mapping[str, Any]]  # each {"role": …, "content": …}

# what ends a turn in the public models, though their settings do not always say so
TURN_ENDS = ("<|im_end|>", "<|end_turn|>")


def is_chat(prompt: Any) -> bool:
    """Whether a prompt is a list of messages."""
    return isinstance(prompt, Sequence) and not isinstance(prompt, str) and len(prompt) > 0 and isinstance(prompt[0], Mapping)


def chat_ids(tokenizer: Any, messages: Messages, name: str = "prompt", enable_thinking: bool | None = None) -> list[int]:
    """The tokens of a conversation that the model is to go on with; the template writes the begin token, so none is added."""
    if tokenizer is None or not getattr(tokenizer, "chat_template", None):
        raise ValueError(f"{name} holds messages, but the model's tokenizer has no chat template: give a text")
    for message in messages:
        if not isinstance(message, Mapping) or not isinstance(message.get("role"), str) or "content" not in message:
            raise ValueError(f"{name} holds the message {message!r}: each needs a role and a content")
    options = {"add_generation_prompt": True, "return_dict": False, **template_options(tokenizer, enable_thinking)}
    try:
        return tokenizer.apply_chat_template(list(messages), tokenize=True, **options)
    except Exception as error:  # templates are programs, and raise what they like
        raise ValueError(f"{name}: the chat template refuses these messages: {' '.join(str(error).split())}") from error


def text_ids(tokenizer: Any, text: str) -> list[int]:
    """The tokens of a text. One that begins with the begin token, as templates write it, gets no second one."""
    begin = getattr(tokenizer, "bos_token", None)
    # whether a text is too long is judged elsewhere, in words of our own
    options: dict[str, Any] = {"verbose": False} if isinstance(tokenizer, PreTrainedTokenizerBase) else {}
    if begin and text.startswith(begin):
        options["add_special_tokens"] = False
    return tokenizer(text, **options).input_ids


def prompt_ids(tokenizer: Any, prompt: str | Messages) -> list[int]:
    """The tokens of a text or of a conversation."""
    return text_ids(tokenizer, prompt) if isinstance(prompt, str) else chat_ids(tokenizer, prompt)


def said(text: str) -> list[dict[str, str]]:
    """A conversation of which this is all: what a user says."""
    return [{"role": "user", "content": text}]


def end_tokens(model: Any, tokenizer: Any, chat: bool = False) -> set[int]:
    """Ids that end a text. Model and tokenizer do not always agree, so either's will do; an answer ends with its turn."""
    config, own = model.generation_config, getattr(tokenizer, "eos_token_id", None)
    from_model = config.eos_token_id if config is not None else None
    listed = from_model if isinstance(from_model, list) else [from_model]
    turns = turn_ends(tokenizer) if chat or thinks(model) else ()
    return {token for token in (*listed, own, *turns) if isinstance(token, int)}  # a checkpoint may say anything


def turn_ends(tokenizer: Any) -> set[int]:
    """The ids of those ends of a turn that the tokenizer knows."""
    known = {} if tokenizer is None else tokenizer.get_added_vocab()
    return {known[text] for text in TURN_ENDS if text in known}


def thinks(model: Any) -> bool:
    """Whether a model is one of those that answer in turns even to a plain text."""
    return "thinking" in (model.config.name_or_path or "").lower()
