"""`minserve lab` and `minserve check`, as a learner runs them."""


def test_from_a_clean_copy_to_a_check(minserve, tmp_path):
    assert "lab3       Lab 3: the cancellation leak" in minserve("lab", "list").ok().out
    target = tmp_path / "work"
    assert str(target) in minserve("lab", "start", "lab3", "--to", str(target)).ok().out
    minserve("lab", "start", "lab3", "--to", str(target)).refused("exists already")
    (notebook,) = target.iterdir()
    done = minserve("check", "lab3", str(notebook), "--json")
    assert done.code == 1 and done.json["points"] == "0 of 17 automatic, 3 by hand"
    assert "to do  3 points: the test passes on a correct engine" in done.out
    assert "nothing is earned yet: find out why each test FAILS" in done.out
    assert "FAILS  4 points: a cancelled request gives its blocks back at once" in done.out
    assert "Seen: cancelled while its prompt was being read: its blocks are stranded." in done.out


def test_an_unknown_lab_or_file_is_one_clear_error(minserve):
    minserve("check", "lab0").refused("no lab is called 'lab0'")
    minserve("check", "lab3", "/nowhere.ipynb").refused("cannot read")
    minserve("check", "my/lab3_cancellation_leak.ipynb").refused("`minserve check lab3 my/lab3")
    minserve("check", "final.ipynb").refused("`minserve check LAB final.ipynb`")
    minserve("lab", "start", "lab0").refused("lab3")


def test_a_place_that_takes_no_files_is_named(minserve, tmp_path):
    in_the_way = tmp_path / "a-file"
    in_the_way.write_text("mine")
    for folder in (in_the_way, in_the_way / "below"):
        minserve("lab", "start", "lab3", "--to", str(folder)).refused(str(folder), "another place")
    assert in_the_way.read_text() == "mine"
