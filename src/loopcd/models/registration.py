"""The families' model types in transformers' Auto classes, without importing transformers before somebody else does.

transformers and torch take seconds to import, and a command line that only says how it is used needs neither.
"""

import sys
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType
from typing import Any

AUTO = "transformers.models.auto.configuration_auto"  # where transformers keeps what AutoConfig knows


def register() -> None:
    """Tell AutoConfig the model types; the models tell AutoModelForCausalLM when a configuration of theirs is made."""
    from transformers import AutoConfig

    from loopcd.models.configs import HuginnConfig, NanbeigeConfig, OuroConfig, ParcaeConfig

    for config in (HuginnConfig, OuroConfig, NanbeigeConfig, ParcaeConfig):
        AutoConfig.register(config.model_type, config, exist_ok=True)


def register_with_transformers() -> None:
    """Now where transformers' Auto classes are there already, else in the moment in which they are imported."""
    if AUTO in sys.modules:
        register()
    elif not any(isinstance(finder, _Registrar) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Registrar())


class _Registrar(MetaPathFinder):
    """Waits for the Auto classes; when their module has been run it registers, and is gone."""

    def find_spec(self, name: str, path: Any = None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name != AUTO:
            return None
        sys.meta_path.remove(self)
        spec = find_spec(name)
        if spec is not None and spec.loader is not None:
            run = spec.loader.exec_module

            def run_and_register(module: ModuleType) -> None:
                run(module)
                register()

            spec.loader.exec_module = run_and_register
        return spec
