"""A filter on system calls: no sockets, no new namespaces, no looking into other processes, no memory that nobody counts.

It holds also where there are no namespaces, so that a program has no network there either.
"""

import ctypes
import errno
import platform
from dataclasses import dataclass

from . import kernel

_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _AND, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x54, 0x06
_ALLOW, _REFUSE, _KILL = 0x7FFF0000, 0x00050000, 0x80000000
_NUMBER, _ARCHITECTURE, _FIRST_ARGUMENT, _SECOND_ARGUMENT = 0, 4, 16, 24  # places in what the filter is shown
_X32 = 0x40000000  # the second set of numbers that x86-64 has
_NEW_NAMESPACE = 0x7E020000  # any CLONE_NEW… flag but CLONE_NEWTIME, whose bit means something else to clone
_UNIX, _STREAM, _KIND = 1, 1, 0xF  # a family of sockets, a kind of them, and the bits that say the kind
_SET_SECCOMP, _MODE_FILTER = 22, 2

# What is refused, with its number on x86-64 and on arm64. io_uring could open a socket without the call of that name.
REFUSED = {
    "socket": (41, 198),
    "unshare": (272, 97),
    "setns": (308, 268),
    "mount": (165, 40),
    "umount2": (166, 39),
    "pivot_root": (155, 41),
    "chroot": (161, 51),
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "pidfd_getfd": (438, 438),
    "kcmp": (312, 272),
    "bpf": (321, 280),
    "perf_event_open": (298, 241),
    "userfaultfd": (323, 282),
    "keyctl": (250, 219),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "io_uring_setup": (425, 425),
    "open_by_handle_at": (304, 265),
    "kexec_load": (246, 104),
    "init_module": (175, 105),
    "finit_module": (313, 273),
    "fsopen": (430, 430),
    "open_tree": (428, 428),
    "move_mount": (429, 429),
    "mount_setattr": (442, 442),
    "open_tree_attr": (467, 467),
    # memory that belongs to no process: no limit sees it, and some of it stays when all processes are gone
    "memfd_create": (319, 279),
    "memfd_secret": (447, 447),
    "shmget": (29, 194),
    "shmat": (30, 196),
    "semget": (64, 190),
    "msgget": (68, 186),
    "mq_open": (240, 180),
}
_CLONE3 = 435  # hides its flags from a filter; the C library does without it


@dataclass(frozen=True)
class Machine:
    """What a filter has to know of an architecture."""

    audit: int  # the kernel's name for it
    clone: int
    socketpair: int
    refused: tuple[int, ...]


MACHINES = {
    "x86_64": Machine(0xC000003E, 56, 53, tuple(numbers[0] for numbers in REFUSED.values())),
    "aarch64": Machine(0xC00000B7, 220, 199, tuple(numbers[1] for numbers in REFUSED.values())),
}


class _Instruction(ctypes.Structure):
    _fields_ = [("code", ctypes.c_uint16), ("yes", ctypes.c_uint8), ("no", ctypes.c_uint8), ("value", ctypes.c_uint32)]


class _Program(ctypes.Structure):
    _fields_ = [("length", ctypes.c_uint16), ("instructions", ctypes.POINTER(_Instruction))]


def available() -> bool:
    return platform.machine() in MACHINES


def install() -> None:
    """Put the filter on this process and all that it starts; there is no way to take it off."""
    machine = MACHINES[platform.machine()]
    code = _instructions(machine)
    array = (_Instruction * len(code))(*(_Instruction(*one) for one in code))
    program = _Program(len(code), array)
    kernel.forbid_new_privileges()
    kernel.prctl(_SET_SECCOMP, _MODE_FILTER, ctypes.addressof(program))


def _instructions(machine: Machine) -> list[tuple[int, int, int, int]]:
    """(code, steps to skip if so, steps to skip if not, value): read top to bottom, jumps go forward."""
    refuse, missing = (_RETURN, 0, 0, _REFUSE | errno.EPERM), (_RETURN, 0, 0, _REFUSE | errno.ENOSYS)
    code = [
        (_LOAD, 0, 0, _ARCHITECTURE),
        (_EQUAL, 1, 0, machine.audit),
        (_RETURN, 0, 0, _KILL),
        (_LOAD, 0, 0, _NUMBER),
        (_AT_LEAST, 0, 1, _X32),
        (_RETURN, 0, 0, _KILL),
        (_EQUAL, 0, 1, _CLONE3),
        missing,
    ]
    for number in machine.refused:
        code += [(_EQUAL, 0, 1, number), refuse]
    # one of a pair could send to whatever socket has a name; not so of a pair of streams, which asyncio needs
    code += [(_EQUAL, 0, 7, machine.socketpair), (_LOAD, 0, 0, _FIRST_ARGUMENT), (_EQUAL, 0, 3, _UNIX)]
    code += [(_LOAD, 0, 0, _SECOND_ARGUMENT), (_AND, 0, 0, _KIND), (_EQUAL, 1, 0, _STREAM), refuse, (_RETURN, 0, 0, _ALLOW)]
    code += [(_EQUAL, 0, 3, machine.clone), (_LOAD, 0, 0, _FIRST_ARGUMENT), (_ANY_BIT, 0, 1, _NEW_NAMESPACE), refuse]
    return [*code, (_RETURN, 0, 0, _ALLOW)]
