"""The Linux calls that Python has no function for."""

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from typing import Any

CLONE_NEWNS, CLONE_NEWUTS, CLONE_NEWIPC = 0x00020000, 0x04000000, 0x08000000
CLONE_NEWUSER, CLONE_NEWPID, CLONE_NEWNET = 0x10000000, 0x20000000, 0x40000000

MS_RDONLY, MS_NOSUID, MS_NODEV, MS_REMOUNT, MS_BIND = 1, 2, 4, 32, 4096
MS_REC, MS_PRIVATE = 16384, 1 << 18
MNT_DETACH = 2

_PDEATHSIG, _SET_DUMPABLE, _CAPBSET_DROP, _SET_SUBREAPER = 1, 4, 24, 36
_NO_NEW_PRIVS, _CAP_AMBIENT, _AMBIENT_CLEAR_ALL = 38, 47, 4
_MOUNT_SETATTR = 442  # the same number on every architecture
_AT_FDCWD, _AT_RECURSIVE = -100, 0x8000
_CAPABILITY_VERSION_3 = 0x20080522
_SIGKILL = 9


@cache
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def call(name: str, *arguments: Any) -> int:
    """A function of the C library, given numbers, texts and structures."""
    function = getattr(_libc(), name, None)
    if function is None:
        raise OSError(f"this system's C library has no {name}")
    result = function(*map(_in_c, arguments))
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}")
    return result


def _in_c(argument: Any) -> Any:
    if isinstance(argument, int):
        return ctypes.c_long(argument)  # as wide as a register, so that none of it is left to chance
    return argument.encode() if isinstance(argument, str) else argument


def mount(source: str, target: str, kind: str = "", flags: int = 0, options: str = "") -> None:
    call("mount", source, target, kind, flags, options)


def make_read_only(target: str) -> None:
    """Nothing below this mount can be written, run as another user, or be a device."""
    attributes = (ctypes.c_uint64 * 4)(MS_RDONLY | MS_NOSUID | MS_NODEV, 0, 0, 0)
    try:
        call("syscall", _MOUNT_SETATTR, _AT_FDCWD, target, _AT_RECURSIVE, attributes, 32)
    except OSError:  # before Linux 5.12: this mount alone, with the flags that it must keep
        kept = os.statvfs(target).f_flag & ~(MS_REMOUNT | MS_BIND)
        mount("", target, flags=MS_REMOUNT | MS_BIND | MS_RDONLY | MS_NOSUID | MS_NODEV | kept)


def prctl(option: int, *arguments: int) -> None:
    call("prctl", option, *(*arguments, 0, 0, 0, 0)[:4])


def die_with_parent() -> None:
    prctl(_PDEATHSIG, _SIGKILL)


def close_to_others() -> None:
    """Other processes of the same user are kept from this one's memory and open files. A new user is."""
    prctl(_SET_DUMPABLE, 0)


@contextmanager
def open_to_others() -> Iterator[None]:
    """For a moment: else the files about this process are root's."""
    prctl(_SET_DUMPABLE, 1)
    try:
        yield
    finally:
        close_to_others()


def adopt_orphans() -> None:
    prctl(_SET_SUBREAPER, 1)


def forbid_new_privileges() -> None:
    prctl(_NO_NEW_PRIVS, 1)


def forget_capability_bounds() -> None:
    """Take every capability away from all that this process will ever run; needs one of them itself."""
    prctl(_CAP_AMBIENT, _AMBIENT_CLEAR_ALL)
    with suppress(OSError):  # past the kernel's last one
        for capability in range(64):
            prctl(_CAPBSET_DROP, capability)


def drop_capabilities() -> None:
    header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION_3, 0)
    call("capset", header, (ctypes.c_uint32 * 6)())
