"""A tokenizer in which " A" and " B" are single tokens, as SelfEval needs it, and models of its size."""

from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from loopcd.models import LoopedModel
from tools import tiny_huginn, tiny_ouro

SPACE = "Ġ"  # how a byte-level vocabulary writes a space
A, B, LABEL_PAD, LABEL_EOS = 256, 257, 258, 259


def labelled_tokenizer() -> PreTrainedTokenizerFast:
    alphabet = [*sorted(pre_tokenizers.ByteLevel.alphabet()), f"{SPACE}A", f"{SPACE}B"]
    vocabulary = {symbol: index for index, symbol in enumerate(alphabet)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[(SPACE, "A"), (SPACE, "B")]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)  # pyright: ignore
    tokenizer.add_special_tokens(["<pad>", "<eos>"])
    tokenizer.decoder = decoders.ByteLevel()  # pyright: ignore[reportAttributeAccessIssue]
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="<pad>", eos_token="<eos>", padding_side="left")


def labelled_model(family: str) -> LoopedModel:
    make = {"huginn": tiny_huginn, "ouro": tiny_ouro}[family]
    return make(2, vocab_size=260, pad_token_id=LABEL_PAD)
