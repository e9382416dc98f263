"""Conversations as prompts: one template, one begin token, and the ends of turns."""

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import loopcd
from loopcd.cli import main
from loopcd.decoding.chat import turn_ends
from tools import BOS, EOS, byte_tokenizer, save_model, tiny_ouro

TEMPLATE = "{{ bos_token }}{% for m in messages %}{{ m['role'] }}:{{ m['content'] }}|{% endfor %}A:"
ASKED = [{"role": "user", "content": "hi"}]


@pytest.fixture
def chatty() -> Any:
    """A tokenizer that adds a begin token of its own, and whose template writes one too."""
    tokenizer = byte_tokenizer()
    tokenizer.chat_template = TEMPLATE
    tokenizer.backend_tokenizer.post_processor = _begin()
    return tokenizer


def _begin() -> Any:
    from tokenizers.processors import TemplateProcessing

    return TemplateProcessing(single="<bos> $A", special_tokens=[("<bos>", BOS)])


@pytest.fixture
def model() -> Any:
    return tiny_ouro(vocab_size=261)


def test_a_negative_prompt_begins_no_text(chatty: Any) -> None:
    """It is read behind the text so far."""
    assert loopcd.MTI(negative_prompt="NO!").negative_ids(chatty) == chatty("NO!", add_special_tokens=False).input_ids


def test_messages_go_through_the_template_once(chatty: Any, model: Any) -> None:
    wanted = [BOS, *chatty("user:hi|A:", add_special_tokens=False).input_ids]
    assert chatty("x").input_ids[0] == BOS  # or the test would show nothing
    single = loopcd.generate(model, chatty, ASKED, loopcd.Greedy(), max_new_tokens=3)
    several = loopcd.generate(model, chatty, [ASKED, "plain", [*ASKED, *ASKED]], loopcd.Greedy(), max_new_tokens=3)
    assert single == loopcd.generate(model, chatty, [wanted], loopcd.Greedy(), max_new_tokens=3)[0] == several[0]
    assert "".join(loopcd.stream(model, chatty, ASKED, loopcd.Greedy(), max_new_tokens=3)) == single.text
    rendered = chatty.apply_chat_template(ASKED, tokenize=False, add_generation_prompt=True)
    assert loopcd.generate(model, chatty, rendered, loopcd.Greedy(), max_new_tokens=3) == single  # no second begin token
    traced = loopcd.generate(model, chatty, ASKED, loopcd.Greedy(), max_new_tokens=3, trace=True)
    assert traced.trace.prompt_ids.tolist() == wanted


def test_what_cannot_be_a_conversation(chatty: Any, model: Any) -> None:
    with pytest.raises(ValueError, match="prompt holds messages, but the model's tokenizer has no chat template"):
        loopcd.generate(model, byte_tokenizer(), ASKED, loopcd.Greedy())
    for wrong in ([{"role": "user"}], [*ASKED, "and then"]):
        with pytest.raises(ValueError, match="each needs a role and a content"):
            loopcd.generate(model, chatty, [wrong], loopcd.Greedy())
    with pytest.raises(ValueError, match="a text, a list of messages, or a list of token ids"):
        loopcd.generate(model, chatty, ASKED[0], loopcd.Greedy())  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match="enable_thinking='no'"):
        loopcd.generate(model, chatty, ASKED, loopcd.Greedy(), enable_thinking="no")  # pyright: ignore[reportArgumentType]
    chatty.chat_template = "{{ raise_exception('roles must alternate') }}"
    with pytest.raises(ValueError, match="the chat template refuses these messages: roles must alternate"):
        loopcd.generate(model, chatty, ASKED, loopcd.Greedy())


@pytest.mark.parametrize("end", ["<|im_end|>", "<|end_turn|>"])
def test_an_answer_ends_with_its_turn(chatty: Any, model: Any, end: str) -> None:
    chatty.add_special_tokens({"additional_special_tokens": [end]})
    (ended,) = turn_ends(chatty)
    assert ended == EOS + 1
    seen: list[Any] = []
    job = loopcd.Greedy.rows

    def noted(self: Any, work: Any, on_step: Any = None) -> Any:
        seen.append({int(each) for c in work.stopping if hasattr(c, "eos_token_id") for each in c.eos_token_id})
        return job(self, work, on_step)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loopcd.Greedy, "rows", noted)
        for prompt in (ASKED, "hi"):
            loopcd.generate(model, chatty, prompt, loopcd.Greedy(), max_new_tokens=1)
        model.config.name_or_path = "ByteDance/Ouro-1.4B-Thinking"
        loopcd.generate(model, chatty, "hi", loopcd.Greedy(), max_new_tokens=1)
    assert seen == [{EOS, ended}, {EOS}, {EOS, ended}]


def test_the_command_line(chatty: Any, tmp_path: Path) -> None:
    folder = save_model(tmp_path / "model", tiny_ouro(vocab_size=261))
    chatty.save_pretrained(folder)
    loaded, tokenizer = loopcd.load(folder)
    wanted = loopcd.generate(loaded, tokenizer, ASKED, loopcd.Greedy(), max_new_tokens=3).token_ids
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text(json.dumps({"messages": ASKED}) + "\n" + json.dumps({"prompt": "hi"}) + "\n")
    given = ["generate", "--model", str(folder), "--method", "greedy", "--max-new-tokens", "3", "--json"]
    for more, chats in ((["--chat", "hi"], [True]), (["--file", str(prompts)], [True, False]), (["hi"], [False])):
        done = CliRunner().invoke(main, [*given, *more])
        assert done.exit_code == 0, done.output
        found = [result["token_ids"] == wanted for result in json.loads(done.stdout)["results"]]
        assert found == chats
