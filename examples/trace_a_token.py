"""What every loop said about one token, as numbers and as a picture. `python examples/trace_a_token.py [PICTURE]`"""

import sys

import matplotlib.pyplot as plt
import numpy as np

import loopcd

model, tokenizer = loopcd.load("tiny-early")
prompt = "Question: Tom has 10 beads. Tom has 5 more beads than Emma. How many beads does Emma have?\nAnswer:"
trace = loopcd.generate(model, tokenizer, prompt, loopcd.LoopCD(), trace=True).trace
place = int(np.diff(trace.plausible_start).argmax())  # where most tokens were plausible
here = trace.plausible(place)
print(f"token {place} is {trace.pieces[place]!r}; what was plausible there, in % after each loop:")
for token, logits in zip(trace.plausible_ids[here], trace.plausible_logits[here], strict=True):  # logits: [loops]
    text = trace.token_texts[int(token)]
    print(f"{text!r:8}", *(f"{100 * p:5.1f}" for p in np.exp(logits - trace.log_norm[place])))
    plt.plot(range(1, len(logits) + 1), logits, marker="o", label=repr(text))
plt.xlabel("loop")
plt.ylabel("logit")
plt.legend()
plt.savefig(sys.argv[1] if len(sys.argv) > 1 else "token.png")
