"""Settings for all tests: no network, and examples that depend neither on the clock nor, in CI, on chance."""

import os

import pytest
from hypothesis import settings

os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")  # numbers are compared with the CPU's; `load` would choose a GPU
os.environ.setdefault("HF_HUB_OFFLINE", "1")  # before the first import of huggingface_hub, which reads it once

settings.register_profile("loopcd", deadline=None, derandomize="CI" in os.environ, print_blob=True)
settings.load_profile("loopcd")


@pytest.fixture(scope="session")
def golden_huginn():
    from tools import Golden  # here, so that tests without a model do not wait for torch

    return Golden.read("huginn")


@pytest.fixture(scope="session")
def golden_ouro():
    from tools import Golden

    return Golden.read("ouro")
