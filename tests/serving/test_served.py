"""What a request may ask of an engine: the fields, their defaults, and the words in which a wrong one is refused."""

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loopcd.decoding import LoopGuidance
from loopcd.models import HuginnConfig, OuroConfig, preset
from loopcd.models.presets import empty_model
from loopcd.serving.vllm.served import FIELDS, GUIDANCE, GUIDANCE_FIELDS, PREFIX, STRONGEST, Contrast, Guidance, read_served

HUGINN = HuginnConfig(mean_recurrence=12)
OURO = OuroConfig()


@pytest.mark.parametrize("config", [HUGINN, OURO])
def test_a_request_without_the_fields_gets_the_models_own_distribution(config: Any) -> None:
    served = read_served(config, {})
    for extra in (None, {}, {"other": 1, "kv_transfer_params": {}, "ngram_size": 3}, {"loopcd": False}, {"loopcd": 0}):
        assert served.read_request(extra) is None


@pytest.mark.parametrize("config", [HUGINN, OURO])
def test_any_field_or_the_switch_turns_loopcd_on_with_the_preset_for_the_rest(config: Any) -> None:
    served, own = read_served(config, {}), preset(empty_model(config))
    assert served.read_request({"loopcd": True}) == Contrast(own.amateur_loop, own.strength, 0.1)
    assert served.read_request({"loopcd_strength": 0.7}) == Contrast(own.amateur_loop, 0.7, 0.1)
    assert served.read_request({"loopcd_plausibility": 1}) == Contrast(own.amateur_loop, own.strength, 1.0)
    assert served.read_request({"loopcd_amateur_loop": own.amateur_loop}) == Contrast(own.amateur_loop, own.strength, 0.1)


def test_huginn_carries_the_presets_loop_and_ouro_all() -> None:
    assert read_served(HUGINN, {}).amateur_loops == (3,)
    assert read_served(OURO, {}).amateur_loops == (1, 2, 3)
    assert read_served(HUGINN, {"loopcd": {"amateur_loops": [6, 2, 6]}}).amateur_loops == (2, 6)
    assert read_served(OURO, {"loopcd": {"amateur_loops": []}}).amateur_loops == ()
    assert read_served(HuginnConfig(mean_recurrence=1), {}).amateur_loops == ()


def test_a_loop_that_is_not_the_presets_is_the_default_where_the_presets_is_not_carried() -> None:
    served = read_served(HUGINN, {"loopcd": {"amateur_loops": [5, 6]}})
    assert served.read_request({"loopcd": 1}) == Contrast(5, 0.3, 0.1)


def test_the_server_may_have_a_default_of_its_own() -> None:
    served = read_served(OURO, {"loopcd": {"default": {"strength": 0.9}}})
    assert served.read_request(None) == served.read_request({"loopcd": True}) == Contrast(2, 0.9, 0.1)
    assert served.read_request({"loopcd_amateur_loop": 1}) == Contrast(1, 0.9, 0.1)
    assert served.read_request({"loopcd": False}) is None


def test_loopguidance_beside_loopcd() -> None:
    served = read_served(OURO, {"loopcd": {"default": {"strength": 0.9}}})
    own = LoopGuidance()
    assert served.read_request({"loopguidance": True}) == Guidance(own.early_loop, own.weight, own.adaptive)
    asked = {"loopguidance_weight": 2, "loopguidance_early_loop": 3, "loopguidance_adaptive": 0}
    assert served.read_request(asked) == Guidance(3, 2.0, False)
    assert served.read_request({"loopguidance_weight": 2, "loopcd": False}) == Guidance(weight=2.0)
    assert served.read_request({"loopguidance": False}) == served.default
    assert served.read_request({"loopguidance": False, "loopcd": False}) is None


@pytest.mark.parametrize(
    ("extra", "said"),
    [
        ({"loopguidance_weight": -1}, "loopguidance_weight=-1: a number of at least 0"),
        ({"loopguidance_weight": math.nan}, "loopguidance_weight=nan"),
        ({"loopguidance_weight": 10**400}, "loopguidance_weight"),
        ({"loopguidance_weight": 1001}, "loopguidance_weight=1001: at most 1000"),
        ({"loopguidance_early_loop": 4}, "loopguidance_early_loop=4: this engine was started for amateur loops 1, 2, 3"),
        ({"loopguidance_early_loop": "1"}, "loopguidance_early_loop='1': a whole number"),
        ({"loopguidance_adaptive": "yes"}, "loopguidance_adaptive='yes': true or false"),
        ({"loopguidance_strength": 1}, "loopguidance_strength: no such field"),
        ({"loopguidance": False, "loopguidance_weight": 1}, "leave out loopguidance_weight"),
        ({"loopguidance": True, "loopcd": True}, "a request has one of them"),
        ({"loopguidance_weight": 1, "loopcd_strength": 1}, "a request has one of them"),
        ({"loopcd_amateur_loop": 4}, "loopcd_amateur_loop=4: this engine was started for amateur loops 1, 2, 3"),
        ({"loopcd_amateur_loop": 0}, "loopcd_amateur_loop=0"),
        ({"loopcd_amateur_loop": "2"}, "loopcd_amateur_loop='2': a whole number"),
        ({"loopcd_amateur_loop": 1.5}, "loopcd_amateur_loop=1.5: a whole number"),
        ({"loopcd_amateur_loop": [2]}, "loopcd_amateur_loop=[2]: a whole number"),
        ({"loopcd_strength": -0.1}, "loopcd_strength=-0.1: a number of at least 0"),
        ({"loopcd_strength": math.nan}, "loopcd_strength=nan"),
        ({"loopcd_strength": math.inf}, "loopcd_strength=inf"),
        ({"loopcd_strength": 10**400}, "loopcd_strength"),
        ({"loopcd_strength": 1001}, "loopcd_strength=1001: at most 1000"),
        ({"loopcd_strength": "much"}, "loopcd_strength='much': a number"),
        ({"loopcd_plausibility": 0}, "loopcd_plausibility=0: above 0, and at most 1"),
        ({"loopcd_plausibility": 1.01}, "loopcd_plausibility=1.01"),
        ({"loopcd_plausibility": None}, "loopcd_plausibility=None"),
        ({"loopcd_strenght": 0.3}, "loopcd_strenght: no such field"),
        ({"loopcd-strength": 0.3}, "loopcd-strength: no such field"),
        ({"LoopCD": True}, "LoopCD: no such field; there are loopcd, loopcd_amateur_loop,"),
        ({"loop_cd": True}, "loop_cd: no such field"),
        ({"lopguidance_weight": 1}, "lopguidance_weight: no such field"),
        ({"strength": 0.3}, "strength: no such field"),
        ({"loopcd": "yes"}, "loopcd='yes': true or false"),
        ({"loopcd": False, "loopcd_strength": 0.3}, "leave out loopcd_strength"),
    ],
)
def test_a_bad_request_is_refused_by_the_name_of_its_field(extra: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError) as caught:  # noqa: PT011
        read_served(OURO, {}).read_request(extra)
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("section", "said"),
    [
        ({"amateur_loop": 2}, "amateur_loops and default"),
        ([], "an object"),
        ({"amateur_loops": [4]}, "amateur_loops=[4]: a list of loops from 1 to 3"),
        ({"amateur_loops": [True]}, "amateur_loops=[True]"),
        ({"amateur_loops": "2"}, "amateur_loops='2'"),
        ({"default": {"lambda": 1}}, "some of amateur_loop, strength, plausibility"),
        ({"default": {"amateur_loop": 9}}, "loopcd.default.amateur_loop=9"),
        ({"amateur_loops": [], "default": {}}, "amateur loops none"),
    ],
)
def test_a_bad_start_is_refused(section: Any, said: str) -> None:
    with pytest.raises(ValueError) as caught:  # noqa: PT011
        read_served(OURO, {"loopcd": section})
    assert said in str(caught.value)


@pytest.mark.parametrize("loops", [0, -1])
def test_a_model_without_loops_is_refused(loops: int) -> None:
    config = OuroConfig()
    config.total_ut_steps = loops  # as --hf-overrides does
    with pytest.raises(ValueError, match=f"total_ut_steps={loops}: a whole number of at least 1"):
        read_served(config, {})


scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5)
values = scalars | st.lists(scalars, max_size=3) | st.dictionaries(st.text(max_size=3), scalars, max_size=2)
guidance = [GUIDANCE, *(f"{GUIDANCE}_{field}" for field in GUIDANCE_FIELDS)]
keys = st.sampled_from(["loopcd", *(PREFIX + field for field in FIELDS), "loopcd_", *guidance, "other", ""]) | st.text(
    max_size=8
)


@given(st.dictionaries(keys, values, max_size=5))
def test_whatever_a_request_holds_it_is_either_served_in_range_or_refused(extra: dict[str, Any]) -> None:
    served = read_served(OURO, {})
    try:
        setting = served.read_request(extra)
    except ValueError:
        return
    if setting is not None:
        assert setting.amateur_loop in served.amateur_loops
    if isinstance(setting, Guidance):
        assert 0 <= setting.weight <= STRONGEST and isinstance(setting.weight, float) and isinstance(setting.adaptive, bool)
    elif setting is not None:
        assert 0 <= setting.strength <= STRONGEST and 0 < setting.plausibility <= 1
        assert all(isinstance(value, float) for value in (setting.strength, setting.plausibility))
