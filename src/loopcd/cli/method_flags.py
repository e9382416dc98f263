"""Every method by name, its settings as flags."""

from collections.abc import Callable
from typing import Any

import click

METHODS = ("greedy", "loopcd", "loopguidance", "noisecd", "mti", "selfeval")


def loop(text: str) -> int | str:
    """A loop's number, or "auto"."""
    try:
        return text if text == "auto" else int(text)
    except ValueError as error:
        raise click.BadParameter(f"{text!r} is neither the number of a loop nor auto") from error


_SETTINGS: list[tuple[str, str, dict[str, Any]]] = [  # the methods that have it, the flag, and what click.option is told
    ("loopcd", "--amateur-loop", {"type": loop, "help": "LoopCD: the amateur's loop, or auto (the preset's if not given)."}),
    ("loopcd noisecd", "--strength", {"type": float, "help": "LoopCD, NoiseCD: λ."}),
    ("loopcd noisecd mti", "--plausibility", {"type": float, "help": "LoopCD, NoiseCD, MTI: α."}),
    ("loopcd loopguidance", "--coda", {"type": click.Choice(["own", "shared"]), "help": "With a coda: the early loop's past."}),
    ("loopcd", "--where", {"help": 'LoopCD: "hard", "easy", "numeric", "operator" or e.g. "hard numeric" positions only.'}),
    ("loopguidance", "--early-loop", {"type": int, "help": "LoopGuidance: the loop that it leads away from (1 if not given)."}),
    ("loopguidance", "--weight", {"type": float, "help": "LoopGuidance: ω, or its cap where adaptive."}),
    ("loopguidance", "--adaptive/--fixed", {"help": "LoopGuidance: ω by the last loop's confidence, or fixed."}),
    ("noisecd", "--noise", {"type": float, "help": "NoiseCD: σ."}),
    ("mti", "--entropy-threshold", {"type": float, "help": "MTI: τ."}),
    ("mti", "--guidance", {"type": float, "help": "MTI: ω."}),
    ("mti", "--negative-prompt", {"help": "MTI: the negative prompt."}),
    ("selfeval", "--candidates", {"type": int, "help": "SelfEval: N."}),
    ("", "--exit-threshold", {"type": float, "help": "Leave the loop early at this threshold (0.03 in the paper)."}),
    ("", "--min-loops", {"type": int, "help": "Early exit: loops that are run in any case."}),
    ("", "--exit-criterion", {"type": click.Choice(["latent", "gate"]), "help": "Early exit: what is compared."}),
    ("", "--exited", {"type": click.Choice(["last", "skip"]), "help": "Early exit: how tokens that left are seen."}),
    ("", "--draft", {"is_flag": True, "help": "The same tokens faster, by drafting (not NoiseCD, MTI, SelfEval)."}),
    ("", "--draft-loops", {"type": int, "help": "Loops of a draft (chosen by the model's agreement if not given)."}),
    ("", "--draft-length", {"type": int, "help": "Tokens of a drafting round (4 with --draft-loops, else chosen too)."}),
]
# refused here, before torch is imported; a test compares this with the methods' own fields
OWNERS = {flag[2:].partition("/")[0].replace("-", "_"): tuple(names.split()) for names, flag, _ in _SETTINGS if names}


def method_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """The settings of every method, as flags; None where one is not given."""
    for _, flag, told in reversed(_SETTINGS):
        function = click.option(flag, default=None, **told)(function)
    return click.option("--method", type=click.Choice(METHODS), default="loopcd", show_default=True)(function)


def build_method(name: str, given: dict[str, Any]) -> Any:
    """The method of that name with the settings that were given; a setting of another method is refused."""
    given = {key: value for key, value in given.items() if value is not None}
    foreign = sorted(key for key in given if name not in OWNERS.get(key, METHODS))
    if foreign:
        flag = "--" + foreign[0].replace("_", "-")
        raise click.UsageError(f"{flag} is a setting of {', '.join(OWNERS[foreign[0]])}, not of {name}")
    from loopcd.decoding.registry import DRAFT, build

    if given.pop("draft", False):
        given = {**dict.fromkeys(DRAFT), **given}
    return build(name, given)
