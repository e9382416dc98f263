"""Hostile programs: each must be contained, the grader must live, and nothing may be left over."""

import os
import signal
import socket
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import pytest

from evaluation import hostile
from evaluation.hostile import Way
from loopcd.evaluation.code.isolation import filter, landlock, levels, scratch

MEBIBYTE = 1 << 20
WAYS = hostile.ways()
LANDLOCK = landlock.version() > 0
ORDINARY = 54321 if os.getuid() == 0 else None


@pytest.fixture(params=WAYS, ids=str)
def way(request: pytest.FixtureRequest) -> Way:
    return replace(request.param, token=os.urandom(16).hex())


def test_there_is_isolation_here_that_is_enough() -> None:
    assert WAYS, "neither namespaces nor another user: code tasks would be refused here, and nothing below is tested"


def test_without_namespaces_it_falls_back_and_says_why() -> None:
    found = Way(None, blocked=True).run(None)
    wanted = {"level": "user", "enough": True} if os.getuid() == 0 else {"level": "limits", "enough": False}
    assert {key: found[key] for key in wanted} == wanted
    assert found["refused"][0].startswith("namespaces: ") and "not permitted" in found["refused"][0]


def test_an_ordinary_user_without_namespaces_has_too_little() -> None:
    found = Way(None, user=54321 if os.getuid() == 0 else None, blocked=True).run(None)
    assert (found["level"], found["enough"]) == ("limits", False)
    assert [reason.partition(":")[0] for reason in found["refused"]] == ["namespaces", "user"]


def test_a_good_program_runs(way: Way) -> None:
    result = way.run("import tempfile; open(tempfile.mkstemp()[1], 'w').write('x'); say('fine')")
    assert (result["ended"], result["status"], result["said"]) == ("finished", 0, "fine\n")


def test_fork_bomb(way: Way) -> None:
    source = """
import os
def bomb():
    while True:
        try:
            os.fork()
        except OSError:
            pass
child(bomb)
"""
    assert way.run(source, seconds=1, processes=20)["ended"] == "time"
    assert way.nothing_left()


def test_memory_bomb(way: Way) -> None:
    source = """
def bomb():
    kept = []
    while True:
        kept.append(bytearray(16 << 20))
say(child(bomb))
"""
    result = way.run(source, memory=512 * MEBIBYTE)
    assert (result["ended"], result["said"]) == ("finished", "9\n")  # a MemoryError within the program
    assert way.nothing_left()


def test_memory_bomb_of_many_processes(way: Way) -> None:
    source = """
import os, time
for _ in range(8):
    if os.fork() == 0:
        kept = bytearray(os.urandom(1) * (150 << 20))
        time.sleep(100)
time.sleep(100)
"""
    assert way.run(source, memory=400 * MEBIBYTE)["ended"] == "memory"
    assert way.nothing_left()


def test_endless_output(way: Way) -> None:
    result = way.run("while True: say('x' * 10000)", output=100_000)
    assert (result["ended"], result["size"]) == ("output", 100_000)
    assert way.nothing_left()


def test_a_started_process_has_nowhere_to_put_output(way: Way) -> None:
    source = """
import os
def shout():
    for number in range(3, 256):
        try:
            os.write(number, b"forged")
            os._exit(7)
        except OSError:
            pass
    for _ in range(1000):
        os.write(1, b"x" * 100000)
        os.write(2, b"x" * 100000)
say(child(shout))
"""
    assert way.run(source)["said"] == "0\n"


def test_reading_a_secret(way: Way, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("the secret")
    open_to_all = way.level == "namespaces" or LANDLOCK
    secret.chmod(0o644 if open_to_all else 0o600)
    for folder in (tmp_path, *tmp_path.parents[:3]):
        if open_to_all and folder.stat().st_uid == os.getuid() and folder != Path("/tmp"):
            folder.chmod(0o755)
    source = f"""
import os
for path in ({str(secret)!r}, "/proc/{os.getpid()}/environ", "/etc/shadow", f"/proc/{{outside}}/environ", "/proc/1/environ"):
    try:
        say(open(path).read())
    except OSError as error:
        say("refused")
say(os.environ.get("SECRET", "no variable"))
"""
    assert way.run(source)["said"] == "refused\n" * 5 + "no variable\n"


def test_opening_a_socket(way: Way) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0)
        port = server.getsockname()[1]
        source = f"""
import ctypes, socket
for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM):
    for family in (socket.AF_INET, socket.AF_INET6, socket.AF_UNIX, socket.AF_NETLINK):
        try:
            socket.socket(family, kind).connect(("127.0.0.1", {port}))
            say("connected")
        except OSError as error:
            say("refused")
say(ctypes.CDLL(None).socket(2, 1, 0))
"""
        assert way.run(source)["said"] == "refused\n" * 8 + "-1\n"
        with pytest.raises(BlockingIOError):
            server.accept()


def test_a_pair_of_sockets_reaches_no_other(way: Way) -> None:
    """One of a pair can send to any socket that has a name, as the system's log has: Landlock does not keep it from that."""
    kinds, reached = (socket.SOCK_DGRAM, socket.SOCK_STREAM), tempfile.TemporaryDirectory()
    with socket.socket(socket.AF_UNIX, kinds[0]) as log, socket.socket(socket.AF_UNIX, kinds[1]) as server, reached as folder:
        Path(folder).chmod(0o755)
        for name, each in (("log", log), ("server", server)):
            each.bind(f"{folder}/{name}")
            Path(f"{folder}/{name}").chmod(0o666)
            each.settimeout(0)
        server.listen()
        source = f"""
import socket
def tried(reach):
    try:
        reach()
    except OSError:
        return "refused"
    return "reached"
for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM, socket.SOCK_SEQPACKET, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK):
    try:
        one, other = socket.socketpair(socket.AF_UNIX, kind)
    except OSError:
        say("no pair")
        continue
    other.close()
    for name in ("log", "server"):
        say(tried(lambda: one.sendto(b"from inside", {folder!r} + "/" + name)))
        say(tried(lambda: one.connect({folder!r} + "/" + name)))
"""
        assert way.run(source)["said"] == "refused\n" * 4 + "no pair\n" * 3
        with pytest.raises(BlockingIOError):
            log.recv(99)
        with pytest.raises(BlockingIOError):
            server.accept()


def test_programs_may_wait_for_themselves(way: Way) -> None:
    """asyncio wakes itself through a pair of streams."""
    source = """
import asyncio
async def later(value):
    await asyncio.sleep(0.01)
    return value
say(asyncio.run(later("woken")))
"""
    assert way.run(source)["said"] == "woken\n"


def test_killing_its_parent_and_everybody(way: Way) -> None:
    source = """
import ctypes, os, signal
def attack():
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    targets = [outside, outside + 1, outside + 2, 0] if os.getppid() != 1 else [os.getppid(), outside, outside + 1, outside + 2]
    for target in targets:
        try:
            os.kill(target, signal.SIGKILL)
        except OSError:
            pass
    ctypes.CDLL(None).kill(-1, 9)
child(attack)
say("alive")
"""
    result = way.run(source)
    assert result["ended"] == "finished"
    if way.level == "namespaces":  # elsewhere the process inside may be hit, but never the grader
        assert result["said"] == "alive\n"
    assert way.nothing_left()


def test_leaving_a_process_behind(way: Way) -> None:
    source = """
import ctypes, os, time
def hide():
    os.setsid()
    if os.fork() == 0:
        ctypes.CDLL(None).prctl(1, 0, 0, 0, 0)  # no signal when the parent dies
        os.setsid()
        while True:
            time.sleep(0.01)
child(hide)
say("done")
"""
    result = way.run(source)
    assert (result["ended"], result["said"]) == ("finished", "done\n")
    assert way.left() == []


def test_writing_outside(way: Way, tmp_path: Path) -> None:
    folders = [tmp_path, Path("/"), Path("/etc"), Path("/usr"), Path("/usr/lib"), Path("/home"), Path(hostile.package_folder())]
    if way.level == "namespaces" or LANDLOCK:  # else these are open to every user by their permissions
        folders += [Path("/tmp"), Path("/var/tmp"), Path("/dev/shm"), Path("/dev"), Path("/run/lock")]
    paths = [str(folder / f"written-{way.token}") for folder in folders]
    source = f"""
import os
for path in {paths!r}:
    for attempt in (lambda: open(path, "w").close(), lambda: os.mkdir(path), lambda: os.symlink("/", path)):
        try:
            attempt()
        except OSError:
            pass
"""
    assert way.run(source)["status"] == 0
    assert [path for path in paths if os.path.lexists(path)] == []


FILL = """
import os, tempfile, time
for number in range(40):
    path = os.path.join(tempfile.gettempdir(), str(number))
    file = os.open(path, os.O_RDWR | os.O_CREAT)
    if {unlink}:
        os.unlink(path)
    for _ in range(4):
        try:
            os.write(file, bytes(1 << 20))
            say(1 << 20)
        except OSError:
            break
    time.sleep(0.03)
"""


@pytest.mark.parametrize("unlink", [False, True], ids=["files", "files without a name"])
def test_filling_the_disk(way: Way, unlink: bool) -> None:
    result = way.run(FILL.format(unlink=unlink), disk=8 * MEBIBYTE)
    total = sum(map(int, result["said"].split()))
    if way.level == "namespaces":
        assert 0 < total <= 8 * MEBIBYTE
    else:  # seen by looking now and then, so a little late
        assert result["ended"] == "disk" and total < 80 * MEBIBYTE
    big = "import os, signal, tempfile\nsignal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n" + (
        "f = open(os.path.join(tempfile.gettempdir(), 'big'), 'wb', buffering=0)\n"
        "try:\n    say(sum(f.write(bytes(1 << 20)) for _ in range(20)))\nexcept OSError: say('refused')"
    )
    assert way.run(big, disk=8 * MEBIBYTE)["said"] == "refused\n"


LEVELS = [*WAYS, Way("limits"), Way("limits", user=ORDINARY)]


@pytest.mark.parametrize("each", LEVELS, ids=str)
def test_memory_that_nobody_counts(each: Way) -> None:
    """System V's, POSIX's queues, and files in memory: they count as no process's, and some outlive all processes."""
    names = ("shmget", "shmat", "semget", "msgget", "mq_open", "memfd_create", "memfd_secret")
    place = list(filter.MACHINES).index(os.uname().machine)
    arguments = {"mq_open": 'b"/loopcd", 0o102, 0o600, None', "memfd_create": 'b"x", 0', "memfd_secret": "0"}
    calls = ", ".join(
        f"libc.syscall({filter.REFUSED[name][place]}, {arguments.get(name, '0, 1 << 20, 0o1666')})" for name in names
    )
    assert each.run(f"import ctypes\nlibc = ctypes.CDLL(None)\nsay([{calls}])")["said"] == f"{[-1] * len(names)}\n"


@pytest.mark.parametrize("each", LEVELS, ids=str)
def test_very_deep_folders(each: Way) -> None:
    """Deeper than Python recurses, and than a path may be long: they are cleared away, or the program's verdict says that they
    were too much; the grader lives."""
    source = """
import os, tempfile
os.chdir(tempfile.gettempdir())
for _ in range(1100):
    os.mkdir("deep")
    os.chdir("deep")
open("file", "w").close()
os.chmod(".", 0)
say("done")
"""
    before = set(Path(hostile.package_folder(), "scratch").iterdir())
    result = each.run(source)
    assert (result["ended"], result["said"]) == ("finished", "done\n") or result["ended"] == "disk"
    assert set(Path(hostile.package_folder(), "scratch").iterdir()) <= before


def test_a_folder_goes_away_however_deep_and_closed_it_is(tmp_path: Path) -> None:
    top = tmp_path / "top"
    (top / "closed").mkdir(parents=True)
    (top / "closed" / "file").touch()
    (top / "closed").chmod(0)
    (tmp_path / "kept").mkdir()
    (top / "link").symlink_to(tmp_path / "kept")
    before = Path.cwd()
    os.chdir(top)
    try:
        for _ in range(1100):
            Path("deep").mkdir()
            os.chdir("deep")
    finally:
        os.chdir(before)
    scratch.remove(top)
    assert [path.name for path in tmp_path.iterdir()] == ["kept"]
    (tmp_path / "elsewhere").symlink_to(tmp_path / "kept")
    with pytest.raises(NotADirectoryError):
        scratch.remove(tmp_path / "elsewhere")


def test_what_cannot_be_cleared_away_is_the_programs_verdict(way: Way) -> None:
    broken = "from isolation import run as module\ndef remove(folder): raise RecursionError\nmodule.remove = remove\n"
    ended = way.run("say('done')", before=broken)["ended"]
    assert ended == ("finished" if way.level == "namespaces" else "left files")  # namespaces take their files along


@pytest.mark.parametrize("each", LEVELS, ids=str)
def test_looking_into_the_process_that_started_it(each: Way) -> None:
    """Its open files, its memory, what it holds: a child of the same user gets none of it."""
    source = """
import ctypes, os
libc = ctypes.CDLL(None)
above = os.getpid()
def attack():
    found = []
    handle = libc.syscall(434, above, 0)
    found += [libc.syscall(438, handle, number, 0) for number in range(3, 12)]
    found += [libc.syscall(KCMP, above, os.getpid(), 0, 3, 3)]
    for path in (f"/proc/{above}/mem", f"/proc/{above}/fd/3", f"/proc/{above}/environ"):
        try:
            found.append(os.open(path, os.O_RDONLY))
        except OSError:
            pass
    os._exit(0 if set(found) == {-1} else 7)
say(child(attack))
"""
    number = filter.REFUSED["kcmp"][list(filter.MACHINES).index(os.uname().machine)]
    assert each.run(source.replace("KCMP", str(number)))["said"] == "0\n"


def test_a_level_promises_no_more_than_the_kernel_keeps(monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = {
        0: ("files by their permissions: it may read and write what every user may", "all files that the user can", "can end"),
        5: ("no file but libraries and a temporary folder, by Landlock", "no file but libraries", "can end"),
        6: ("no file but libraries and a temporary folder, by Landlock", "no file but libraries", "Landlock"),
    }
    for version, (of_user, of_limits, signals) in wanted.items():
        monkeypatch.setattr(landlock, "version", lambda version=version: version)
        assert of_user in levels.OtherUser().says
        assert of_limits in levels.Limited().says and signals in levels.Limited().says


@pytest.mark.parametrize("each", [way for way in LEVELS if way.level != "namespaces"], ids=str)
def test_without_landlock_a_good_program_runs_too(each: Way) -> None:
    before = "from isolation import landlock\nlandlock.version = lambda: 0\n"
    assert each.run("say('fine')", before=before)["said"] == "fine\n"


@pytest.mark.skipif(not LANDLOCK, reason="this kernel has no Landlock")
@pytest.mark.parametrize("each", [way for way in LEVELS if way.level != "namespaces"], ids=str)
def test_landlock_leaves_libraries_and_one_folder(each: Way, tmp_path: Path) -> None:
    target = tmp_path / "file"
    target.write_text("a")
    for folder in (target, tmp_path, *tmp_path.parents[:3]):
        if folder.stat().st_uid == os.getuid() and folder != Path("/tmp"):
            folder.chmod(0o777)
    source = f"""
import os, tempfile
for attempt in (
    lambda: open({str(target)!r}).read(),
    lambda: open({str(target)!r}, "a"),
    lambda: os.truncate({str(target)!r}, 0),
    lambda: os.remove({str(target)!r}),
    lambda: os.rename({str(target)!r}, {str(target)!r} + "2"),
    lambda: os.link({str(target)!r}, os.path.join(tempfile.gettempdir(), "linked")),
    lambda: os.listdir({str(tmp_path)!r}),
    lambda: open("/etc/passwd").read(),
    lambda: os.listdir("/proc"),
):
    try:
        attempt()
        say("done")
    except OSError:
        say("refused")
"""
    assert each.run(source)["said"] == "refused\n" * 9
    assert target.read_text() == "a"


def test_becoming_somebody_else(way: Way) -> None:
    source = """
import ctypes, os
libc = ctypes.CDLL(None)
for attempt in (lambda: os.setuid(0), lambda: os.setgid(0), lambda: os.chown("/", 0, 0), lambda: os.setgroups([0])):
    try:
        attempt()
        say("became")
    except OSError:
        say("refused")
say([libc.unshare(flag) for flag in (0x10000000, 0x20000, 0x40000000)])
say([libc.ptrace(16, 1, 0, 0), libc.mount(b"x", b"/tmp", b"tmpfs", 0, b""), libc.syscall(425, 1, 0)])
"""
    assert way.run(source)["said"] == "refused\n" * 4 + "[-1, -1, -1]\n[-1, -1, -1]\n"


def test_endless_program(way: Way) -> None:
    begun = time.monotonic()
    assert way.run("while True: pass", seconds=1)["ended"] == "time"
    assert time.monotonic() - begun < 15
    assert way.nothing_left()


def test_nothing_is_left_when_the_grader_is_killed(way: Way) -> None:
    source = "import time; child(lambda: time.sleep(1000))"
    process = way.start(source)
    end = time.monotonic() + 20
    while len(way.left()) < 4 and time.monotonic() < end:
        time.sleep(0.05)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert way.nothing_left()
