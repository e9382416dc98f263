"""The tokenizer of the built-in models: one token for each word, digit and sign of the benchmark, bytes for all else.

A piece of text is a word, a digit or a sign, with the space before it. A piece that the vocabulary holds is one token;
any other is written in bytes, so every text can be encoded and decodes to itself.
"""

from itertools import islice

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from loopcd.evaluation.tasks import steps
from loopcd.evaluation.tasks.steps.families import DAYS

END, PADDING = "<|end|>", "<|pad|>"
PIECE = r" ?[A-Za-z]+| ?[0-9]| ?[^\sA-Za-z0-9]+|\s"
# Not in the benchmark's text: the choices of a question put to the model about its own answer, and yes and no.
EXTRA_PIECES = (" A", " B", " Yes", " No", "A", "B", *map(str, range(10)), *(f" {digit}" for digit in range(10)))
SAMPLE = 1500


def build_tokenizer() -> PreTrainedTokenizerFast:
    """The same vocabulary every time: the pieces of a fixed sample of the training mix, in alphabetical order."""
    split = pre_tokenizers.Split(Regex(PIECE), behavior="isolated")
    splitter = pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    # Only long weeks of `steps-hard` have words that the training mix lacks; a test makes sure that none is in bytes.
    weekdays = (f" {day}" for day in DAYS)
    sample = (problem.text for problem in islice(steps.stream("steps", "train", seed=0), SAMPLE))
    pieces = {piece for text in (*weekdays, *sample, *EXTRA_PIECES) for piece, _ in splitter.pre_tokenize_str(text)}
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    entries = [END, PADDING, *alphabet, *sorted(pieces - set(alphabet))]
    vocabulary = {entry: index for index, entry in enumerate(entries)}
    # Without merges a piece is either in the vocabulary as a whole or it falls apart into bytes.
    core = Tokenizer(models.BPE(vocab=vocabulary, merges=[], ignore_merges=True))
    core.pre_tokenizer = splitter
    core.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(
        tokenizer_object=core,
        eos_token=END,
        pad_token=PADDING,
        model_max_length=512,
        padding_side="left",
        clean_up_tokenization_spaces=False,
    )
