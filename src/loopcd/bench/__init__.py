"""How fast: everything as a ratio of things measured alternately in one process. `loopcd bench` and `loopcd verify`.

Start with `timing` (samples, rounds, spreads) and `parts` (what a run measures). `speeds`, `exact`, `decode`, `vllm`,
`reference` and `full_size` are the parts, on the models and prompts of `subjects`; `traffic` counts the bytes of a step;
`tables` shows a run and `compare` holds it against an earlier one. `verify` checks a model that was loaded.
"""
