"""Writing files: whole or not at all, and through no link, whoever laid it there."""

import os
from collections.abc import Callable
from errno import EROFS
from pathlib import Path

import pytest

from hand_traces import hand_trace
from loopcd.tracing import TraceWriter
from loopcd.tracing.writing import append, cut, filling, own_folder, read_plain, replacing, write_whole


@pytest.fixture
def victim(tmp_path: Path) -> Path:
    path = tmp_path / "victim"
    path.write_text("mine\nmine")
    return path


def trace(path: Path) -> None:
    with TraceWriter(path) as writer:
        writer.add(hand_trace([[[0.0, 2.0], [0.0, 4.0]]]))


WAYS: dict[str, Callable[[Path], object]] = {
    "write": lambda path: write_whole(path, "theirs"),
    "append": lambda path: append(path, b"theirs"),
    "cut": lambda path: cut(path, 0),
    "read": read_plain,
    "trace": trace,
}


@pytest.mark.parametrize("way", WAYS)
def test_a_link_is_refused_and_named(tmp_path: Path, victim: Path, way: str) -> None:
    link = tmp_path / "given"
    for target in (victim, tmp_path / "nowhere"):
        link.unlink(missing_ok=True)
        link.symlink_to(target)
        with pytest.raises(OSError, match="a symbolic link, which is never followed") as caught:
            WAYS[way](link)
        assert caught.value.filename == str(link)
    assert victim.read_text() == "mine\nmine" and not (tmp_path / "nowhere").exists()


@pytest.mark.parametrize("way", WAYS)
def test_nothing_but_a_plain_file_is_opened(tmp_path: Path, way: str) -> None:
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")  # whoever opened it would wait for ever
    for place in (tmp_path / "folder", tmp_path / "pipe", Path("/dev/null")):
        with pytest.raises(OSError):  # noqa: PT011
            WAYS[way](place)


@pytest.mark.parametrize("way", WAYS)
def test_in_a_folder_that_there_is_not_the_given_path_is_named(tmp_path: Path, way: str) -> None:
    with pytest.raises(FileNotFoundError) as caught:
        WAYS[way](tmp_path / "nowhere" / "page.html")
    assert caught.value.filename == str(tmp_path / "nowhere" / "page.html")


def test_a_link_in_place_of_the_partial_file_is_removed_not_followed(tmp_path: Path, victim: Path) -> None:
    (tmp_path / ".page.html.partial").symlink_to(victim)
    write_whole(tmp_path / "page.html", "whole")
    assert victim.read_text() == "mine\nmine"
    assert (tmp_path / "page.html").read_text() == "whole" and not (tmp_path / "page.html").is_symlink()


def test_where_nothing_can_be_changed_the_given_path_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unlink(path: Path, missing_ok: bool = False) -> None:
        raise OSError(EROFS, os.strerror(EROFS), str(path))  # also of a file that there is not, on a disk that is read only

    monkeypatch.setattr(Path, "unlink", unlink)
    with pytest.raises(OSError, match="Read-only") as caught:
        write_whole(tmp_path / "given", "mine")
    assert caught.value.filename == str(tmp_path / "given")


def test_a_file_is_replaced_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "page"
    write_whole(path, "before")

    def half() -> None:
        with replacing(path) as file:
            file.write(b"half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        half()
    assert path.read_text() == "before" and [each.name for each in tmp_path.iterdir()] == ["page"]


def test_a_folder_is_filled_by_a_library_without_its_following_links(tmp_path: Path, victim: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").symlink_to(victim)

    def fill() -> None:
        with filling(folder) as made:
            (made / "config.json").write_text("theirs")

    with pytest.raises(OSError, match="never followed"):
        fill()
    assert victim.read_text() == "mine\nmine" and [each.name for each in folder.iterdir()] == ["config.json"]
    (folder / "config.json").unlink()
    fill()
    assert (folder / "config.json").read_text() == "theirs" and [each.name for each in folder.iterdir()] == ["config.json"]


def test_folders_on_the_way_down_are_no_links_but_the_users_own_may_be(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "mine").symlink_to(tmp_path / "elsewhere")
    assert own_folder(tmp_path / "mine" / "a" / "b", tmp_path / "mine").is_dir()
    (tmp_path / "mine" / "c").symlink_to(tmp_path)
    for name in ("c", "c/d"):
        with pytest.raises(OSError, match="never followed"):
            own_folder(tmp_path / "mine" / name, tmp_path / "mine")
    assert not (tmp_path / "d").exists()
