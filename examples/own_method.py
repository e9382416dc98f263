"""A decoding rule of one's own: the mean of what the last two loops say. `python examples/own_method.py`"""

from dataclasses import dataclass

import torch

import loopcd
from loopcd.decoding import Method
from loopcd.decoding.early import EarlyLoop
from loopcd.decoding.scoring import Scores


@dataclass(frozen=True)
class LastTwo(Method):
    weight: float = 0.5  # of the loop before the last

    def scorer(self, reader, tokenizer):
        return LastTwoScorer(reader, self.weight)


class LastTwoScorer:
    def __init__(self, reader, weight):
        self.model, self.weight, self.early = reader.model, weight, EarlyLoop(reader.model, reader.num_loops - 1, "shared")

    def watch(self, state):  # sees the state after every loop
        self.early.watch(state)

    def score(self, reading, cache):  # reading.logits [rows, vocab] are the last loop's
        rows = torch.arange(len(reading.logits))
        before = self.model.head(self.early.read(reading, rows)).float()
        self.early.clear()
        mixed = torch.lerp(reading.logits, before, self.weight)
        touched = mixed.argmax(dim=-1) != reading.logits.argmax(dim=-1)
        return Scores(mixed, None, mixed.shape[1], contested=touched.cpu(), touched=touched.cpu(), count=reading.count)


if __name__ == "__main__":
    model, tokenizer = loopcd.load("tiny-huginn")
    prompt = "Question: A cap costs 9 dollars. Noah buys 5 caps. He pays with 54 dollars. How many does he get back?\nAnswer:"
    made = loopcd.generate(model, tokenizer, prompt, LastTwo(weight=0.4))
    print(made.text, f"\n{made.touched} of {len(made.token_ids)} tokens are not the last loop's")
