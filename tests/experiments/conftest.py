"""Laboratories and random models as the tests of analysis have them."""

from analysis.conftest import _models, counting, folders, lab, model, one_thread, ouro, own_model, shared_caches, tokenizer

__all__ = ["_models", "counting", "folders", "lab", "model", "one_thread", "ouro", "own_model", "shared_caches", "tokenizer"]
