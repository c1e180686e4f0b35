"""What comes into the course: only notebooks, received when the course says, from their owner."""

import os
import stat
import zipfile
from datetime import UTC, datetime, timedelta

import pytest
from grading.conftest import NOON

from autograder import collecting, receipts, scoring
from minserve.errors import ConfigError, DataNotFound

LAB = scoring.find("lab3")
FILE = f"{LAB.name}.ipynb"


def submitted(course, student):
    return course.root / "submitted" / student / LAB.name / FILE


def put(folder, student, data=b"one", name=FILE):
    path = folder / student / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


def zipped(path, *entries):
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in entries:
            archive.writestr(name, data)
    return path


# -- folders


def test_a_receipt_keeps_its_time_until_other_bytes_come(course, tmp_path):
    put(tmp_path / "in", "ann")
    later = NOON + timedelta(days=1)
    for when in (NOON, later):
        collecting.from_folder(course, LAB, tmp_path / "in", when)
    assert receipts.find(course, LAB, "ann").time == NOON
    put(tmp_path / "in", "ann", b"two")
    done = collecting.from_folder(course, LAB, tmp_path / "in", later)
    assert (done.taken, done.same) == (["ann"], [])
    assert receipts.find(course, LAB, "ann").time == later
    assert submitted(course, "ann").read_bytes() == b"two"
    (kept,) = (course.root / "earlier" / LAB.name / receipts.file_id("ann")).iterdir()
    assert kept.read_bytes() == b"one"


def test_a_timestamp_file_of_the_submitter_is_not_read(course, tmp_path):
    path = put(tmp_path / "in", "ann")
    (path.parent / "timestamp.txt").write_text("2001-01-01 00:00:00 UTC")
    collecting.from_folder(course, LAB, tmp_path / "in", NOON)
    assert receipts.find(course, LAB, "ann").time == NOON
    assert [p.name for p in submitted(course, "ann").parent.iterdir()] == [FILE]


def test_a_link_is_collected_as_a_link_and_never_followed(course, tmp_path):
    secret = tmp_path / "secret.ipynb"
    secret.write_text("secret")
    folder = tmp_path / "in" / "ann"
    folder.mkdir(parents=True)
    (folder / FILE).symlink_to(secret)
    collecting.from_folder(course, LAB, tmp_path / "in", NOON)
    assert submitted(course, "ann").is_symlink()
    assert receipts.find(course, LAB, "ann") is None


@pytest.mark.parametrize("name", [FILE, "other.ipynb"])
def test_a_folder_that_is_a_link_leads_to_no_solution(course, tmp_path, name):
    solutions = tmp_path / "solutions"
    solutions.mkdir()
    (solutions / name).write_text("the solution")
    (tmp_path / "in" / "ann").mkdir(parents=True)
    (tmp_path / "in" / "ann" / LAB.name).symlink_to(solutions)
    done = collecting.from_folder(course, LAB, tmp_path / "in", NOON)
    assert done.taken == [] and "cannot read" in done.refused[0]
    assert not [path for path in (course.root / "submitted").rglob("*") if path.is_file()]


def test_folders_pipes_and_giants_in_place_of_a_notebook_stop_nobody_else(course, tmp_path):
    for name in ("ann", "bob", "cem", "dan"):
        (tmp_path / "in" / name).mkdir(parents=True)
    (tmp_path / "in" / "ann" / FILE).mkdir()
    os.mkfifo(tmp_path / "in" / "bob" / FILE)
    with (tmp_path / "in" / "cem" / "other.ipynb").open("wb") as file:
        file.truncate(10**12)
    (tmp_path / "in" / "dan" / FILE).write_bytes(b"x")
    done = collecting.from_folder(course, LAB, tmp_path / "in", NOON)
    assert done.taken == ["dan"]
    assert [line.partition(":")[0] for line in done.refused] == ["ann", "bob", "cem"]
    assert "larger than 32 MiB" in done.refused[2]


@pytest.mark.parametrize(
    "name", ["a\nb", "a\udcff", "<b>", 'a"b', "a\u202eb", "-rf", ".", "", " ", "a/b", "*"]
)
def test_what_cannot_stand_on_a_line_or_a_page_is_no_student_id(name):
    assert not collecting.is_plain_id(name)


def test_a_name_taken_apart_by_a_mac_is_the_same_student(course, tmp_path):
    source = zipped(tmp_path / "in.zip", (f"Zoe\u0308/{FILE}", b"x"))
    assert collecting.from_zip(course, LAB, source, NOON).taken == ["Zo\xeb"]


@pytest.mark.parametrize("name", ["ann", "s001", "ann.lee@example.org", "O'Neil", "Zoë", "a b"])
def test_what_schools_use_is_a_student_id(name):
    assert collecting.is_plain_id(name)


# -- zip files


@pytest.mark.parametrize(
    "name",
    [f"../ann/{FILE}", f"/ann/{FILE}", f"ann/../../{FILE}", f"C:/ann/{FILE}", f"..\\ann\\{FILE}"],
)
def test_a_zip_path_that_climbs_is_refused(course, tmp_path, name):
    before = {path for path in tmp_path.rglob("*") if "receipts" not in path.parts}
    source = zipped(tmp_path / "in.zip", (name, b"x"), (f"bob/{FILE}", b"y"))
    done = collecting.from_zip(course, LAB, source, NOON)
    assert done.taken == ["bob"] and "climbs" in done.refused[0]
    made = {path for path in tmp_path.rglob("*") if "receipts" not in path.parts} - before
    assert {p for p in made if p.is_file()} == {source, submitted(course, "bob")}


def test_links_and_floods_in_a_zip_file_are_refused(course, tmp_path, monkeypatch):
    monkeypatch.setattr(collecting, "SIZE_LIMIT", 1000)
    link = zipfile.ZipInfo(f"ann/{FILE}")
    link.external_attr = (stat.S_IFLNK | 0o777) << 16
    path = tmp_path / "in.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(link, "/etc/passwd")
        archive.writestr(f"bob/{FILE}", b"\0" * 10**6)
        archive.writestr(f"-rf/{FILE}", b"x")
    done = collecting.from_zip(course, LAB, path, NOON)
    assert done.taken == [] and list((course.root / "submitted").iterdir()) == []
    assert [line.partition(": ")[2].split()[0] for line in done.refused] == [
        "it",
        "larger",
        "names",
    ]


@pytest.mark.parametrize("method", [zipfile.ZIP_DEFLATED, zipfile.ZIP_LZMA, zipfile.ZIP_BZIP2])
def test_one_damaged_file_in_a_zip_file_costs_nobody_else(course, tmp_path, method):
    path = tmp_path / "in.zip"
    with zipfile.ZipFile(path, "w", method) as archive:
        archive.writestr(f"ann/{FILE}", os.urandom(4000))
        archive.writestr(f"bob/{FILE}", b"y")
    data = bytearray(path.read_bytes())
    data[100:3000] = b"\xff" * 2900
    path.write_bytes(data)
    done = collecting.from_zip(course, LAB, path, NOON)
    assert done.taken == ["bob"] and len(done.refused) == 1 and "cannot be read" in done.refused[0]


def test_a_pattern_finds_the_student_in_the_names_that_moodle_gives(course, tmp_path):
    source = zipped(tmp_path / "in.zip", (f"Ann Abel_4711_assignsubmission_file_/{FILE}", b"x"))
    pattern = r".*_(?P<student>\d+)_assignsubmission_file_/.*"
    assert collecting.from_zip(course, LAB, source, NOON, pattern).taken == ["4711"]


def test_what_is_no_zip_file_or_pattern_is_one_clear_error(course, tmp_path):
    (tmp_path / "bad.zip").write_bytes(b"PK, not")
    with pytest.raises(DataNotFound, match="cannot read"):
        collecting.from_zip(course, LAB, tmp_path / "bad.zip", NOON)
    with pytest.raises(ConfigError, match="does not name a student"):
        collecting.from_zip(course, LAB, tmp_path / "bad.zip", NOON, "(.*)")


# -- nbgrader's exchange


def hand_in(course, student, data, stamp="2026-12-01 10:00:00 UTC"):
    folder = course.root / "exchange" / "minserve" / "inbound" / f"{student}+{LAB.name}+{stamp}+x"
    folder.mkdir(parents=True)
    (folder / FILE).write_bytes(data)
    (folder / "timestamp.txt").write_text(stamp)
    return folder


def test_the_exchange_gives_the_time_of_the_machine_not_the_submitters(course):
    forged = hand_in(course, "ann", b"x", "1999-01-01 00:00:00 UTC")
    for path in (forged / FILE, forged):
        os.utime(path, (0, 0))
    before = datetime.now(UTC) - timedelta(minutes=5)
    collecting.from_exchange(course, LAB, lambda path: "ann")
    assert receipts.find(course, LAB, "ann").time > before


def test_of_several_in_the_exchange_the_last_by_the_machines_time_counts(course):
    hand_in(course, "ann", b"first", "2026-12-09 00:00:00 UTC")
    hand_in(course, "ann", b"second", "2026-12-01 00:00:00 UTC")
    collecting.from_exchange(course, LAB, lambda path: "ann")
    assert submitted(course, "ann").read_bytes() == b"second"


def test_a_folder_of_another_owner_goes_to_quarantine_until_somebody_accepts_it(course):
    hand_in(course, "ann", b"not hers")
    done = collecting.from_exchange(course, LAB, lambda path: "bob")
    assert done.taken == [] and "is owned by bob: in quarantine" in done.refused[0]
    assert not submitted(course, "ann").exists()
    quarantine = course.root / "quarantine" / LAB.name
    assert collecting.from_folder(course, LAB, quarantine, NOON, {"ann"}).taken == ["ann"]
    assert submitted(course, "ann").read_bytes() == b"not hers"


def test_the_owner_is_the_account_that_the_machine_names(course):
    folder = hand_in(course, "root", b"x")
    if os.getuid() != 0:
        pytest.skip("needs root, to give a folder away")
    os.chown(folder, 1, 1)  # daemon
    done = collecting.from_exchange(course, LAB)
    assert done.taken == [] and "owned by daemon" in done.refused[0]


def test_where_all_share_an_account_the_check_can_be_switched_off(course):
    (course.root / "course.toml").write_text("[collect]\ncheck_owner = false\n")
    hand_in(course, "ann", b"x")
    assert collecting.from_exchange(course, LAB, lambda path: "jovyan").taken == ["ann"]


def test_a_folder_of_the_exchange_that_becomes_a_link_is_refused(course, tmp_path):
    """Between the look at its owner and the reading of its file."""
    solutions = tmp_path / "solutions"
    solutions.mkdir()
    (solutions / FILE).write_text("the solution")
    folder = hand_in(course, "ann", b"x")

    def swap(path):
        folder.rename(tmp_path / "away")
        folder.symlink_to(solutions)
        return "ann"

    done = collecting.from_exchange(course, LAB, swap)
    assert done.taken == [] and "cannot read" in done.refused[0]


def test_a_link_in_the_exchange_is_refused(course, tmp_path):
    folder = hand_in(course, "ann", b"x")
    (folder / FILE).unlink()
    (folder / FILE).symlink_to("/etc/passwd")
    done = collecting.from_exchange(course, LAB, lambda path: "ann")
    assert done.taken == [] and len(done.refused) == 1


def test_an_exchange_that_is_not_there_says_what_to_do(course):
    with pytest.raises(DataNotFound) as caught:
        collecting.from_exchange(course, LAB)
    assert "release_assignment" in caught.value.hint
