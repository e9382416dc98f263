"""Every method by name, its settings as flags."""

from collections.abc import Callable
from typing import Any

import click

METHODS = ("greedy", "loopcd", "loopguidance", "noisecd", "mti", "selfeval")


class LoopOrAuto(click.ParamType):
    """A loop's number, or "auto"."""

    name = "LOOP"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int | str:
        try:
            return value if value == "auto" else int(value)
        except ValueError:
            self.fail(f"{value!r} is neither the number of a loop nor auto", param, ctx)


def method_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """The settings of every method, as flags."""
    options = [
        click.option("--method", type=click.Choice(METHODS), default="loopcd", show_default=True),
        click.option(
            "--amateur-loop", type=LoopOrAuto(), help="LoopCD: the amateur's loop, or auto (the preset's if not given)."
        ),
        click.option("--strength", type=float, help="LoopCD, NoiseCD: λ."),
        click.option("--plausibility", type=float, help="LoopCD, NoiseCD, MTI: α."),
        click.option(
            "--coda",
            type=click.Choice(["own", "shared"]),
            help="With a coda: the early loop's past.",
        ),
        click.option("--where", help='LoopCD: "hard", "easy", "numeric", "operator" or e.g. "hard numeric" positions only.'),
        click.option("--early-loop", type=int, help="LoopGuidance: the loop that it leads away from (1 if not given)."),
        click.option("--weight", type=float, help="LoopGuidance: ω, or its cap where adaptive."),
        click.option("--adaptive/--fixed", default=None, help="LoopGuidance: ω by the last loop's confidence, or fixed."),
        click.option("--noise", type=float, help="NoiseCD: σ."),
        click.option("--entropy-threshold", type=float, help="MTI: τ."),
        click.option("--guidance", type=float, help="MTI: ω."),
        click.option("--negative-prompt", help="MTI: the negative prompt."),
        click.option("--candidates", type=int, help="SelfEval: N."),
        click.option("--exit-threshold", type=float, help="Leave the loop early at this threshold (0.03 in the paper)."),
        click.option("--min-loops", type=int, help="Early exit: loops that are run in any case."),
        click.option("--exit-criterion", type=click.Choice(["latent", "gate"]), help="Early exit: what is compared."),
        click.option("--exited", type=click.Choice(["last", "skip"]), help="Early exit: how tokens that left are seen."),
        click.option(
            "--draft", is_flag=True, default=None, help="The same tokens faster, by drafting (not NoiseCD, MTI, SelfEval)."
        ),
        click.option("--draft-loops", type=int, help="Loops of a draft (chosen by the model's agreement if not given)."),
        click.option("--draft-length", type=int, help="Tokens of a drafting round (4 with --draft-loops, else chosen too)."),
    ]
    for option in reversed(options):
        function = option(function)
    return function


_OF = {  # refused here, before torch is imported; a test compares this with the methods' own fields
    "amateur_loop": ("loopcd",),
    "strength": ("loopcd", "noisecd"),
    "plausibility": ("loopcd", "noisecd", "mti"),
    "coda": ("loopcd", "loopguidance"),
    "where": ("loopcd",),
    "early_loop": ("loopguidance",),
    "weight": ("loopguidance",),
    "adaptive": ("loopguidance",),
    "noise": ("noisecd",),
    "entropy_threshold": ("mti",),
    "guidance": ("mti",),
    "negative_prompt": ("mti",),
    "candidates": ("selfeval",),
}


def build_method(name: str, given: dict[str, Any]) -> Any:
    """The method of that name with the settings that were given; a setting of another method is refused."""
    given = {key: value for key, value in given.items() if value is not None}
    foreign = sorted(key for key in given if name not in _OF.get(key, METHODS))
    if foreign:
        flag = "--" + foreign[0].replace("_", "-")
        raise click.UsageError(f"{flag} is a setting of {', '.join(_OF[foreign[0]])}, not of {name}")
    from loopcd.decoding.registry import DRAFT, build

    if given.pop("draft", False):
        given = {**dict.fromkeys(DRAFT), **given}
    return build(name, given)
