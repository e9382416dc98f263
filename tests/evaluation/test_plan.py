"""Methods as they are written on the command line."""

import click
import pytest

import loopcd
from loopcd.cli.method_flags import METHODS as NAMES
from loopcd.cli.method_flags import OWNERS, build_method, method_options
from loopcd.decoding.registry import DRAFT, EXIT, METHODS, own_settings, settings
from loopcd.evaluation.plan import MethodSpec, RunPlan, parse_methods, parse_seeds


def test_settings_belong_to_the_method_before_them() -> None:
    greedy, contrast, guided = parse_methods("greedy, loopcd:amateur_loop=2,strength=0.1, mti")
    assert (greedy.label, contrast.label, guided.label) == ("greedy", "loopcd:amateur_loop=2,strength=0.1", "mti")
    assert contrast.build() == loopcd.LoopCD(amateur_loop=2, strength=0.1)


def test_every_method_has_its_defaults() -> None:
    assert [spec.build() for spec in parse_methods(",".join(METHODS))] == [kind() for kind in METHODS.values()]


def test_the_command_line_has_a_flag_for_every_setting() -> None:
    assert tuple(METHODS) == NAMES
    flags = {each.name for each in click.command()(method_options(lambda **_: None)).params}
    of_programs = {"lazy", "temperature", "top_p"}  # `generate` has its own of the last two
    assert flags - {"method", "draft"} == {*EXIT, *DRAFT, *(s for name in METHODS for s in own_settings(name))} - of_programs
    for name in METHODS:
        assert {flag for flag, owners in OWNERS.items() if name in owners} == {*own_settings(name)} - of_programs
    assert settings("mti") == ("entropy_threshold", "guidance", "negative_prompt", "plausibility", *EXIT)


def test_exit_and_draft_are_settings_too() -> None:
    (leaving, drafting) = parse_methods("loopcd:exit_threshold=0.03,min_loops=15,greedy:draft_loops=2,draft_length=3")
    assert leaving.build() == loopcd.LoopCD(exit=loopcd.EarlyExit(0.03, 15))
    assert drafting.build() == loopcd.Greedy(draft=loopcd.SelfDraft(2, 3))


def test_a_draft_is_the_same_on_both_command_lines() -> None:
    for given in ({"draft_loops": 2}, {"draft_length": 3}, {"draft_loops": 2, "draft_length": 3}):
        settings = ",".join(f"{name}={value}" for name, value in given.items())
        assert parse_methods(f"loopcd:{settings}")[0].build() == build_method("loopcd", dict(given))


def test_the_same_method_may_stand_there_with_different_settings() -> None:
    labels = [spec.slug for spec in parse_methods("loopcd:strength=0.1,loopcd:strength=0.2")]
    assert labels == ["loopcd_strength=0.1", "loopcd_strength=0.2"]


def test_every_method_has_a_file_of_its_own() -> None:
    texts = ["A B", "A_B", "A__B", "a", "x " * 200]
    slugs = [parse_methods(f"mti:negative_prompt={text}")[0].slug for text in texts]
    assert len(set(slugs)) == len(slugs) and max(map(len, slugs)) < 100 and "mti_negative_prompt=a" in slugs


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("loopdc", "there is no method 'loopdc': known are greedy, loopcd, loopguidance, noisecd, mti, selfeval"),
        ("loopcd:noise=1", "loopcd has no setting 'noise': its settings are amateur_loop, strength"),
        ("mti:draft_loops=1", "mti has no setting 'draft_loops'"),
        ("strength=0.1", "stands before any method"),
        ("greedy,,loopcd", "an empty part"),
        ("loopcd:strength", "not of the form setting=value"),
        ("loopcd:strength=", "not of the form setting=value"),
        ("loopcd:strength=0.1,strength =0.2", "strength is set twice for loopcd"),
        ("loopcd:strength= ", "not of the form setting=value"),
        ("greedy,greedy", "greedy stands there twice"),
        ("loopcd:strength=1,loopcd:strength=1.0", "loopcd:strength=1.0 stands there twice"),
        ("", "an empty part"),
    ],
)
def test_what_cannot_be_read_is_explained(text: str, said: str) -> None:
    with pytest.raises(ValueError) as caught:  # noqa: PT011
        parse_methods(text)
    assert said in str(caught.value)


@pytest.mark.parametrize("text", ["loopcd:strength=x", "loopcd:strength=-1", "loopcd:amateur_loop=1.5", "mti:guidance=nan"])
def test_values_out_of_range_are_refused(text: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011
        parse_methods(text)[0].build()


def test_drawing_that_would_not_be_done_is_refused() -> None:
    with pytest.raises(ValueError, match=r"--top-p 0\.9: at --temperature 0 nothing is drawn"):
        RunPlan(parse_methods("greedy"), top_p=0.9)
    with pytest.raises(ValueError, match=r"--temperature=1e-09: 0, or from 1e-06 to 1e\+06"):
        RunPlan(parse_methods("greedy"), temperature=1e-9)
    with pytest.raises(ValueError, match=r"--temperature 1\.0: selfeval draws its candidates itself"):
        RunPlan(parse_methods("greedy,selfeval"), temperature=1.0)
    RunPlan(parse_methods("greedy,selfeval:temperature=0.7,top_p=0.9"))


def test_seeds() -> None:
    assert parse_seeds("0,1,2,3") == (0, 1, 2, 3)
    for wrong in ("", "a", "1.5"):
        with pytest.raises(ValueError, match="whole numbers"):
            parse_seeds(wrong)
    for seeds in ((1, 1), (-1,), ()):
        with pytest.raises(ValueError, match="different whole numbers"):
            RunPlan((MethodSpec("greedy"),), seeds)
