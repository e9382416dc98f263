"""Bytes of a token, against counts done by hand."""

import pytest
import torch

from loopcd.bench.traffic import Stream, step_traffic
from tools import tiny_hrm, tiny_huginn, tiny_ouro, tiny_parcae

WIDTH, MLP, VOCABULARY = 32, 48, 259


def test_huginn_reads_prelude_core_coda_and_head() -> None:
    layer = WIDTH * 3 * WIDTH + WIDTH * WIDTH + WIDTH * 2 * MLP + MLP * WIDTH + 4 * WIDTH  # qkv, proj, fc, proj, norms
    layer += 2 * WIDTH  # the bias of queries and keys
    found = step_traffic(tiny_huginn(), context=10)  # 1 + 2 + 1 layers, 4 loops
    assert found.once == 4 * (layer + WIDTH)
    assert found.loop == 4 * (2 * layer + 2 * WIDTH * WIDTH)
    assert found.readout == 4 * (layer + 2 * WIDTH)
    assert found.head == 4 * VOCABULARY * WIDTH
    assert found.cache == 4 * 2 * (1 + 1 + 4 * 2) * 10 * WIDTH
    assert found.weights == found.once + 4 * found.loop + found.readout + found.head


def test_ouro_reads_its_layers_in_every_loop() -> None:
    layer = 4 * WIDTH * WIDTH + 3 * WIDTH * MLP + 4 * WIDTH
    found = step_traffic(tiny_ouro(), context=10)  # 2 layers, 4 loops
    assert (found.once, found.readout) == (4 * WIDTH, 0)
    assert found.loop == 4 * (2 * layer + WIDTH)
    assert found.cache == 4 * 2 * (4 * 2) * 10 * WIDTH


def test_parcae_reads_its_projection_once() -> None:
    width = 36
    layer = 4 * width * width + 2 * width * MLP + 2 * width
    gates = 3 * 32  # one of the core's two layers, and the coda's
    found = step_traffic(tiny_parcae(), context=10)  # 1 + 2 + 1 layers, 4 loops
    assert found.once == 4 * (layer + width + width)
    assert found.loop == 4 * (2 * layer + gates + width * width + 2 * width)
    assert found.readout == 4 * (layer + gates + width * width + width)


def test_rows_of_a_batch_share_the_weights_but_not_the_cache() -> None:
    found = step_traffic(tiny_ouro(), context=100)
    assert found.per_token(8) == found.weights / 8 + found.cache


def test_grouped_heads_and_a_smaller_dtype_read_less() -> None:
    plain, grouped = step_traffic(tiny_ouro(), 10), step_traffic(tiny_ouro(num_key_value_heads=1), 10)
    assert grouped.cache * 4 == plain.cache
    assert grouped.loop < plain.loop
    half = step_traffic(tiny_ouro(), 10, torch.bfloat16)
    assert (half.weights * 2, half.cache * 2) == (plain.weights, plain.cache)


def test_a_family_that_is_not_counted_is_refused() -> None:
    with pytest.raises(ValueError, match="Huginn and Ouro"):
        step_traffic(tiny_hrm(), 10)


def test_a_stream_reads_all_its_matrices() -> None:
    assert Stream(megabytes=1, side=100)().amount == 25 * 100 * 100 * 4
