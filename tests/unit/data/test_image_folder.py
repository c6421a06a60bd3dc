"""Image names: nothing outside the folder is reached, be it by dots, from the root, or along a link."""

import re
import unicodedata

import pytest

from coordexp.data.images.folder import ImageFolder
from coordexp.errors import DataError


@pytest.fixture
def folder(tmp_path):
    root = tmp_path / "images"
    (root / "sub").mkdir(parents=True)
    (root / "a.jpg").touch()
    (root / "sub" / "b.jpg").touch()
    (tmp_path / "secret.jpg").touch()
    return root


@pytest.mark.parametrize(
    "name", ["../secret.jpg", "sub/../../secret.jpg", "/etc/passwd", "..", ".", "", "sub/..", "./"]
)
def test_a_name_that_leaves_is_refused(folder, name):
    with pytest.raises(DataError, match=re.escape(f"'{name}'")):
        ImageFolder(folder).path_of(name)
    with pytest.raises(DataError):
        ImageFolder(folder, check=False).locate(name)  # also where nothing is looked up


@pytest.mark.parametrize(
    ("name", "relative"),
    [("a.jpg", "a.jpg"), ("./a.jpg", "a.jpg"), ("sub//b.jpg", "sub/b.jpg"), ("sub/./b.jpg", "sub/b.jpg")],
)
def test_names_are_written_one_way(folder, name, relative):
    assert ImageFolder(folder, check=False).locate(name) == relative
    assert ImageFolder(folder).path_of(name) == folder / relative
    assert ImageFolder(folder).locate(str(folder / relative)) == relative


def test_a_link_out_of_the_folder_is_refused(folder, tmp_path):
    (folder / "out.jpg").symlink_to(tmp_path / "secret.jpg")
    (folder / "in.jpg").symlink_to(folder / "a.jpg")
    (folder / "round.jpg").symlink_to("../images/sub/b.jpg")
    images = ImageFolder(folder)
    with pytest.raises(DataError, match=r"out\.jpg.*link"):
        images.path_of("out.jpg")
    assert images.path_of("in.jpg").exists()
    assert images.path_of("round.jpg").exists()


def test_the_folder_itself_may_be_a_link(folder, tmp_path):
    (tmp_path / "link").symlink_to(folder)
    assert ImageFolder(tmp_path / "link").path_of("sub/b.jpg").exists()


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("images\\Straße 1.JPG", "Straße 1.jpg"),
        ("C:\\Users\\me\\set\\sub\\b.jpg", "sub/b.jpg"),
        ("/content/drive/My Drive/set/sub/B.jpeg", None),
        ("/content/drive/My Drive/set/sub/B.JPG", "sub/b.jpg"),
        ("d%C3%A9cran%202.png", "décran 2.png"),  # which the disk has decomposed, as macOS writes it
        ("https://host/upload/sub/b.jpg?X-Key=1", "sub/b.jpg"),
        ("/data/local-files/?d=set%5Csub%5Cb.jpg", "sub/b.jpg"),
        ("twice/c.jpg", "twice/c.jpg"),
        ("c.jpg", None),  # there are two
        ("other/c.jpg", None),
    ],
)
def test_a_name_of_another_machine_finds_the_one_file_it_can_mean(folder, name, found):
    for place in ("Straße 1.jpg", unicodedata.normalize("NFD", "décran 2.png"), "twice/c.jpg", "again/c.jpg"):
        (folder / place).parent.mkdir(exist_ok=True)
        (folder / place).touch()
    images = ImageFolder(folder)
    if found is None:
        with pytest.raises(DataError):
            images.locate(name)
        assert images.notes == ()
        return
    located = images.locate(name)
    assert unicodedata.normalize("NFC", located) == found
    assert (folder / located).is_file()
    assert images.read_as.total() == (name != found)


def test_what_cannot_be_found_is_named_with_what_is_near(folder):
    images = ImageFolder(folder)
    with pytest.raises(DataError, match=r"a\.jpeg.*'a\.jpg'"):
        images.locate("a.jpeg")
    with pytest.raises(DataError, match=r"a\.jpgg.*'a\.jpg'"):
        images.locate("a.jpgg")
    (folder / "100.png").touch()
    with pytest.raises(DataError, match=r"000\.png") as refused:
        ImageFolder(folder).locate("000.png")
    assert "100.png" not in str(refused.value), "another number is another picture"
    with pytest.raises(DataError, match=r"'https://host/x\.jpg'.*URL"):
        images.locate("https://host/x.jpg")


def test_two_names_that_end_alike_do_not_get_one_file(folder):
    images = ImageFolder(folder)
    images.locate("b/a.jpg")
    with pytest.raises(DataError, match=r"c/a\.jpg"):
        images.locate("c/a.jpg")
    train = folder.rename(folder.parent / "train2017")
    with pytest.raises(DataError, match=r"val2017/a\.jpg"):
        ImageFolder(train).locate("val2017/a.jpg")


def test_a_folder_that_is_a_link_out_is_refused(folder, tmp_path):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "c.jpg").touch()
    (folder / "linked").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(DataError, match="linked.*link"):
        ImageFolder(folder).path_of("linked/c.jpg")
