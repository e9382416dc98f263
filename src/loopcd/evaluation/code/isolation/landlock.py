"""Landlock: a process gives up all files but those that it names, for itself and all that it starts. Needs no privileges."""

import ctypes
import os
from contextlib import suppress

from . import kernel

_CREATE, _ADD, _RESTRICT = 444, 445, 446  # system calls, the same numbers on every architecture
_VERSION = 1
_PATH_BENEATH = 1
_EXECUTE, _WRITE, _READ, _LIST, _TRUNCATE, _DEVICE = 1 << 0, 1 << 1, 1 << 2, 1 << 3, 1 << 14, 1 << 15
_ALL = {1: (1 << 13) - 1, 2: (1 << 14) - 1, 3: (1 << 15) - 1, 4: (1 << 15) - 1, 5: (1 << 16) - 1}  # rights, by version
SCOPED = 6  # the version from which signals and abstract sockets can be kept within
_OF_FILES = _EXECUTE | _WRITE | _READ | _TRUNCATE | _DEVICE


class _Ruleset(ctypes.Structure):
    _fields_ = [("files", ctypes.c_uint64), ("network", ctypes.c_uint64), ("scoped", ctypes.c_uint64)]


class _Beneath(ctypes.Structure):
    _pack_ = 1
    _fields_ = [("allowed", ctypes.c_uint64), ("parent", ctypes.c_int32)]


def version() -> int:
    """What this kernel offers; 0: nothing."""
    try:
        return kernel.call("syscall", _CREATE, None, 0, _VERSION)
    except OSError:
        return 0


def restrict(readable: list[str], writable: list[str], devices: list[str]) -> None:
    """Keep this process to these files and folders, and its signals to processes that are kept so with it."""
    offered = version()
    every = _ALL[min(offered, 5)]
    rules = _Ruleset(every, 0, 3 if offered >= SCOPED else 0)
    size = 24 if offered >= SCOPED else 8
    ruleset = kernel.call("syscall", _CREATE, ctypes.byref(rules), size, 0)
    try:
        reading, using = _EXECUTE | _READ | _LIST, _READ | _WRITE
        for paths, rights in ((readable, reading), (devices, using), (writable, every & ~_DEVICE)):
            for path in paths:
                with suppress(FileNotFoundError):
                    _allow(ruleset, path, rights & every)
        kernel.forbid_new_privileges()
        kernel.call("syscall", _RESTRICT, ruleset, 0)
    finally:
        os.close(ruleset)


def _allow(ruleset: int, path: str, rights: int) -> None:
    opened = os.open(path, os.O_PATH | os.O_CLOEXEC)
    try:
        folder = os.path.isdir(path)  # noqa: PTH112
        rule = _Beneath(rights if folder else rights & _OF_FILES, opened)
        kernel.call("syscall", _ADD, ruleset, _PATH_BENEATH, ctypes.byref(rule), 0)
    finally:
        os.close(opened)
