"""The research behind the built-in models' cards and one question that the paper leaves open. Not part of the package.

`python -m experiments trajectory tiny-cue --out DIR` trains several seeds and measures LoopCD along the way (`trajectory`,
`effects`); `python -m experiments card RUN MODEL` measures a trained model and writes its card (`figures`, `dynamics`,
`card`); `python -m experiments auto` compares rules that choose the amateur at every token (`auto`, `contests`).
"""
