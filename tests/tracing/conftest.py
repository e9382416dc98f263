import pytest
from transformers import PreTrainedTokenizerFast

from random_models import *  # noqa: F403 (fixtures)
from tools import byte_tokenizer


@pytest.fixture(scope="session")
def tokenizer() -> PreTrainedTokenizerFast:
    return byte_tokenizer()
