"""Serving looped models on engines that were made for it.

`vllm/` is the plugin: start with its `contrast`, LoopCD for the rows of a batch that asked for it, and `processor`, which
applies it. `memory` says what a served model needs; it imports nothing of vLLM.
"""
