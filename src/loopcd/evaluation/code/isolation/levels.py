"""The ways to shut a program in, from the strongest down. Each is entered in two steps.

The middle process takes the first (`leave`): it makes the namespaces, or picks the user, and stays outside to clear up. Its
child takes the second (`shut`): a root folder of its own, another user, limits, the filter. Then it runs the program.
"""

import os
import signal
import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from . import filter, kernel, landlock, limits

_NAMESPACES = kernel.CLONE_NEWNS | kernel.CLONE_NEWPID | kernel.CLONE_NEWNET | kernel.CLONE_NEWIPC | kernel.CLONE_NEWUTS
_DEVICES = ("null", "zero", "full", "random", "urandom")
_SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/etc/ld.so.cache", "/etc/localtime", "/proc/meminfo")
# above what distributions and containers give out; a run's own user is this plus a process number
_FIRST_USER = 2_000_000_000


@dataclass(frozen=True)
class Place:
    """Where a program runs: the user (None: as we are) and the one folder that it may write to."""

    user: int | None
    scratch: str
    neighbours: int = 0  # other processes of that user: the kernel counts them together, on some systems in namespaces too


class Limited:
    """Limits, the filter and Landlock alone: not enough for code that nobody has read."""

    name = "limits"
    enough = False
    own_files = False  # whether it brings a temporary folder of its own

    @property
    def says(self) -> str:
        signals = "" if landlock.version() >= landlock.SCOPED else ", and can end the user's other processes"
        return f"the same user, {_only_its_own() or 'all files that the user can read or write'}{signals}"

    def leave(self, scratch: str) -> Place:
        kernel.adopt_orphans()
        return Place(None, scratch, limits.processes_of(os.getuid()))

    def shut(self, place: Place, given: limits.Limits) -> None:
        given.impose(place.neighbours)
        kernel.forget_capability_bounds()
        if not self.own_files and landlock.version():
            devices = [f"/dev/{name}" for name in _DEVICES]
            landlock.restrict([real for real, _ in _readable()], [place.scratch], devices)
        if place.user is not None:
            os.setgroups([])
            os.setresgid(place.user, place.user, place.user)
            os.setresuid(place.user, place.user, place.user)
        kernel.drop_capabilities()
        kernel.close_to_others()
        os.chdir(place.scratch)
        if filter.available():
            filter.install()
        kernel.forbid_new_privileges()
        kernel.die_with_parent()  # again: a change of user forgets it

    def clear(self, place: Place) -> None:
        """End what the program left behind."""
        while left := limits.descendants(os.getpid()):
            for process in left:
                with suppress(ProcessLookupError):
                    os.kill(process, signal.SIGKILL)
            reap()


class OtherUser(Limited):
    """A user that owns nothing; needs root. Files are kept by Landlock or their permissions, the network by the filter."""

    name = "user"
    enough = True

    @property
    def says(self) -> str:
        by_permissions = "files by their permissions: it may read and write what every user may, and what it writes there stays"
        return f"a user that owns nothing, {_only_its_own() or by_permissions}"

    def leave(self, scratch: str) -> Place:
        if not filter.available():
            raise OSError("no filter for this architecture, so the network would be open")
        user = free_user()
        kernel.adopt_orphans()
        os.chown(scratch, user, user)
        return Place(user, scratch)

    def clear(self, place: Place) -> None:
        """No process but the program's has this user, and one call ends all of them: none can fork in between."""
        killer = os.fork()
        if killer == 0:
            if place.user is not None:
                os.setresuid(place.user, place.user, place.user)
                os.kill(-1, signal.SIGKILL)
            os._exit(0)
        reap()


class Namespaces(Limited):
    """Processes, network, files and IPC of its own, and another user where we are root."""

    name = "namespaces"
    enough = True
    own_files = True

    @property
    def says(self) -> str:
        return "own processes, network and IPC; libraries read-only, a temporary folder, no other file"

    def leave(self, scratch: str) -> Place:
        if os.getuid() == 0:
            with suppress(OSError):
                kernel.call("unshare", _NAMESPACES)
                return Place(free_user(), "/tmp")
        user, group, neighbours = os.getuid(), os.getgid(), limits.processes_of(os.getuid())
        kernel.call("unshare", _NAMESPACES | kernel.CLONE_NEWUSER)
        with kernel.open_to_others():
            Path("/proc/self/setgroups").write_text("deny")
            Path("/proc/self/uid_map").write_text(f"{user} {user} 1")
            Path("/proc/self/gid_map").write_text(f"{group} {group} 1")
        return Place(None, "/tmp", neighbours)

    def shut(self, place: Place, given: limits.Limits) -> None:
        os.setsid()  # else a signal to its own group would reach us
        _change_root(given)
        super().shut(place, given)

    def clear(self, place: Place) -> None:
        """The kernel ended all when the first process of the namespace ended."""


LEVELS: tuple[Limited, ...] = (Namespaces(), OtherUser(), Limited())


def _only_its_own() -> str:
    return "no file but libraries and a temporary folder, by Landlock" if landlock.version() else ""


def reap() -> None:
    with suppress(ChildProcessError):
        while True:
            os.waitpid(-1, 0)


def free_user() -> int:
    """A user id that nobody has: no file is its own, and no other process runs as it."""
    if os.getuid() != 0:
        raise OSError("only root can run a program as another user")
    return _FIRST_USER + os.getpid()


def _readable() -> list[tuple[str, str]]:
    """(where it is, where the program sees it) of all that Python needs."""
    wanted = [*_SYSTEM, sys.base_prefix, sys.base_exec_prefix, sys.prefix, *sys.path]
    paths = sorted({os.path.abspath(path) for path in wanted if path and os.path.exists(path)} - {"/"})  # noqa: PTH100, PTH110
    outermost = [path for path in paths if not any(path.startswith(f"{other}/") for other in paths)]
    return [(os.path.realpath(path), path) for path in outermost]


def _change_root(given: limits.Limits) -> None:
    """A root folder in memory with what Python needs to read, a few devices, and /tmp as the one place to write."""
    readable = _readable()
    os.umask(0o022)
    kernel.mount("", "/", flags=kernel.MS_REC | kernel.MS_PRIVATE)
    closed = kernel.MS_NOSUID | kernel.MS_NODEV
    kernel.mount("root", "/tmp", "tmpfs", closed, "size=1m,mode=755")
    Path("/tmp/.old").mkdir()
    kernel.call("pivot_root", "/tmp", "/tmp/.old")
    os.chdir("/")
    Path("/tmp").mkdir()
    kernel.mount("tmp", "/tmp", "tmpfs", closed, f"size={given.disk},nr_inodes=8192,mode=1777")
    for source, target in readable:
        _bind(f"/.old{source}", target)
        kernel.make_read_only(target)
    for name in _DEVICES:
        _bind(f"/.old/dev/{name}", f"/dev/{name}")
    Path("/dev/shm").symlink_to("/tmp")
    kernel.call("umount2", "/.old", kernel.MNT_DETACH)  # with all below, also where something is still open in it
    Path("/.old").rmdir()
    kernel.mount("", "/", flags=kernel.MS_REMOUNT | kernel.MS_BIND | kernel.MS_RDONLY | closed)


def _bind(source: str, target: str) -> None:
    place = Path(target)
    place.parent.mkdir(parents=True, exist_ok=True)
    if Path(source).is_dir():
        place.mkdir(exist_ok=True)
    else:
        place.touch()
    kernel.mount(source, target, flags=kernel.MS_BIND | kernel.MS_REC)
