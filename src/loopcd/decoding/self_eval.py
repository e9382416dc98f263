"""Self-evaluation: several answers, of which the model keeps the one that it itself judges most likely to be right."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from loopcd.decoding import checks
from loopcd.decoding.loop import Job, Rows, Sampling, Step
from loopcd.decoding.methods import Greedy, Method
from loopcd.decoding.reader import Reader
from loopcd.decoding.scoring import Scorer
from loopcd.decoding.texts import pad_left, trim

QUESTION = "Q: {question}\nAnswer: {answer}\nIs the above answer correct?\nA) Yes\nB) No\nAnswer:"
NO_STREAM = "SelfEval cannot be streamed: it knows its answer only when all candidates are written"


@dataclass(frozen=True)
class SelfEval(Method):
    """Make `candidates` answers (N) and keep the one with the highest z_A − z_B of the paper's yes/no prompt.

    A model that starts from a latent state (Huginn) makes them greedily from N random initial states; any other (Ouro) by
    sampling with `temperature` and `top_p`: the paper tries (1.0, 0.7) and (0.7, 0.9). `question` takes the question out
    of a prompt, where the prompt holds more than that (worked examples); the whole prompt is used otherwise.
    """

    candidates: int = 4
    temperature: float = 1.0
    top_p: float = 0.7
    seed: int = field(default=0, kw_only=True)
    question: Callable[[str], str] | None = field(default=None, kw_only=True)

    chooses_tokens = False

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.whole("candidates", self.candidates, 1)
        checks.positive("temperature", self.temperature)
        checks.share("top_p", self.top_p)
        checks.whole("seed", self.seed)

    def reserve(self, tokenizer: Any) -> int:
        checks.need_tokenizer(tokenizer, "SelfEval asks the model about its answers")
        return len(tokenizer(QUESTION.format(question="", answer="")).input_ids) + 8  # some room for other cuts of the text

    def scorer(self, reader: Reader, tokenizer: Any) -> Scorer:
        raise ValueError(NO_STREAM)

    def rows(self, job: Job, on_step: Callable[[Step], None] | None = None) -> Rows:
        if on_step is not None:
            raise ValueError(NO_STREAM)
        if job.sampling.draw or job.sampling.keeps or job.init_seed is not None:
            raise ValueError(
                "SelfEval draws its candidates itself: set SelfEval(temperature=, top_p=, seed=), "
                "and leave temperature, init_seed and output_scores of generate alone"
            )
        checks.need_tokenizer(job.tokenizer, "SelfEval asks the model about its answers")
        labels = label_ids(job.tokenizer)
        made = [Greedy(exit=self.exit).rows(self._candidate(job, k)) for k in range(self.candidates)]
        judged = torch.stack([self._judge(job, rows, labels) for rows in made])  # [candidates, batch]
        chosen = judged.argmax(dim=0)
        seeds = [self.seed + index for index in chosen.tolist()] if job.model.has_initial_state else None
        return replace(_chosen(made, chosen, job.pad_token_id or 0), init_seeds=seeds)

    def _candidate(self, job: Job, index: int) -> Job:
        if job.model.has_initial_state:
            return replace(job, init_seed=self.seed + index, cache=None)
        numbers, processors = job.numbers or range(job.input_ids.shape[0]), job.sampling.processors or ()
        sampling = Sampling.drawn(self.temperature, self.top_p, self.seed + index, numbers, processors)
        return replace(job, sampling=sampling, cache=None)

    @torch.no_grad()
    def _judge(self, job: Job, rows: Rows, labels: tuple[int, int]) -> Tensor:
        """z_A − z_B of each row's answer [batch], by one pass from the deterministic state."""
        asked = []
        stops = [stop for criterion in job.stopping for stop in getattr(criterion, "stop_strings", ())]
        masks = torch.ones_like(job.input_ids) if job.attention_mask is None else job.attention_mask
        for prompt, mask, tokens, going in zip(job.input_ids, masks.bool(), rows.tokens, rows.going, strict=True):
            shown = job.tokenizer.decode(prompt[mask], skip_special_tokens=True)
            answer = job.tokenizer.decode(tokens[going.to(tokens.device)], skip_special_tokens=True)
            question = self.question(shown) if self.question is not None else shown
            asked.append(QUESTION.format(question=question.strip(), answer=trim(answer, stops)[0].strip()))
        ids = [job.tokenizer(text).input_ids for text in asked]
        batch, attention = pad_left(ids, job.pad_token_id or 0, job.input_ids.device)
        reading, _ = Reader(job.model, job.num_loops).read(batch, attention)
        return reading.logits[:, labels[0]] - reading.logits[:, labels[1]]


def label_ids(tokenizer: Any) -> tuple[int, int]:
    """The ids of the labels " A" and " B", which must be single tokens."""
    found = []
    for label in (" A", " B"):
        ids = tokenizer(label, add_special_tokens=False).input_ids
        if len(ids) != 1:
            raise ValueError(f"SelfEval reads the label {label!r} as one token, but this tokenizer makes {len(ids)} of it")
        found.append(ids[0])
    if found[0] == found[1]:
        raise ValueError('SelfEval needs " A" and " B" to be different tokens, but this tokenizer does not tell them apart')
    return found[0], found[1]


def _chosen(made: list[Rows], choice: Tensor, pad: int) -> Rows:
    """Row b of candidate `choice[b]`, all padded to the longest."""
    longest = max(rows.tokens.shape[1] for rows in made)

    def gathered(name: str, fill: int = 0) -> Tensor:
        padded = []
        for row, candidate in enumerate(choice.tolist()):
            values = getattr(made[candidate], name)[row]
            padded.append(torch.cat([values, values.new_full((longest - len(values),), fill)]))
        return torch.stack(padded)

    going, loops, contested, touched = map(gathered, ("going", "loops", "contested", "touched"))
    return Rows(gathered("tokens", pad), going, loops, contested, touched)
