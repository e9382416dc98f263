"""Decode one prompt greedily and by LoopCD, then stream it. `python examples/decode.py`"""

import loopcd

model, tokenizer = loopcd.load("tiny-early")
prompt = "Question: Tom has 10 beads. Tom has 5 more beads than Emma. How many beads does Emma have?\nAnswer:"
for method in (loopcd.Greedy(), loopcd.LoopCD()):
    made = loopcd.generate(model, tokenizer, prompt, method)
    print(f"{type(method).__name__}: {made.text.strip()!r}, {made.contested} contested tokens of {len(made.token_ids)}")
for piece in loopcd.stream(model, tokenizer, prompt):  # LoopCD with the model's preset unless another method is given
    print(piece, end="", flush=True)
print()
