"""Conversations in the viewer: through the tokenizer's template once, with one begin token."""

from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import loopcd
from loopcd.cli import main
from loopcd.decoding.chat import said
from loopcd.evaluation.engine import LocalEngine
from loopcd.lens.server import Viewer
from loopcd.tracing import Written, trace_texts
from tools import BOS, byte_tokenizer, save_model, tiny_huginn

TEMPLATE = "{{ bos_token }}{% for m in messages %}{{ m['role'] }}:{{ m['content'] }}|{% endfor %}A:"
ASKED = {"max_new_tokens": 4, "left": {"name": "greedy", "settings": {}}, "right": {"name": "loopcd", "settings": {}}}


def chatty() -> Any:
    """A tokenizer that adds a begin token of its own, and whose template writes one too."""
    from tokenizers.processors import TemplateProcessing

    tokenizer = byte_tokenizer()
    tokenizer.chat_template = TEMPLATE
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(single="<bos> $A", special_tokens=[("<bos>", BOS)])
    return tokenizer


@pytest.mark.parametrize("asked", [{"prompt": "hi"}, {"messages": [{"role": "user", "content": "hi"}]}])
def test_what_a_user_says_goes_through_the_template(asked: dict[str, Any]) -> None:
    engine = LocalEngine(tiny_huginn(), chatty(), "tiny")
    viewer = Viewer(engine, chat="prompt" in asked)
    events = list(viewer.generate({**ASKED, **asked}, lambda: None))
    wanted = loopcd.generate(engine.model, engine.tokenizer, said("hi"), loopcd.Greedy(), max_new_tokens=4)
    ends = [event["trace"] for event in events if event["event"] == "end"]
    assert ends[0]["text"] == wanted.text and ends[0]["prompt"].endswith("user:hi|A:")
    with pytest.raises(ValueError, match="messages: a list of objects"):
        viewer.generate({**ASKED, "messages": ["hi"]}, lambda: None)


def test_a_traced_text_gets_no_second_begin_token() -> None:
    tokenizer, model = chatty(), tiny_huginn()
    text = tokenizer.apply_chat_template([{"role": "user", "content": "hi"}], tokenize=False)
    (trace,) = trace_texts(model, tokenizer, [Written(text, [65, 66])])
    assert trace.prompt_ids.tolist().count(BOS) == 1


def test_an_exported_page_of_a_conversation(tmp_path: Path) -> None:
    folder, target = save_model(tmp_path / "model", tiny_huginn()), tmp_path / "page.html"
    chatty().save_pretrained(folder)
    call = ["lens", "--chat", "--model", str(folder), "--max-new-tokens", "3", "--export", str(target), "hi"]
    done = CliRunner().invoke(main, call)
    assert done.exit_code == 0, done.output
    assert "user:hi|A:" in target.read_text()
