"""Images by reference, and collections of images and texts."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import tarfile
from pathlib import Path

import pytest
from PIL import Image

from lgp.beir import DataError, read_items
from lgp.choices import Direction, EmptyDocuments
from lgp.config_data import DatasetConfig, DatasetKind
from lgp.config_llm import ConfigError
from lgp.data import load_dataset
from lgp.image_text import load_image_text
from lgp.images import CorruptImageError, ImageFolder, Pictures


def jpeg(color: tuple[int, int, int], size: tuple[int, int] = (8, 8), **how: object) -> bytes:
    out = io.BytesIO()
    Image.new("RGB", size, color).save(out, "JPEG", **how)
    return out.getvalue()


# ---- a folder ----


def test_images_are_rgb_and_upright(tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6  # to be turned by a quarter
    (tmp_path / "turned.jpg").write_bytes(jpeg((10, 20, 30), (20, 10), exif=exif))
    Image.new("P", (5, 4), 3).save(tmp_path / "palette.gif")
    Image.new("CMYK", (5, 4)).save(tmp_path / "print.jpg")
    Image.new("RGBA", (5, 4), (255, 0, 0, 0)).save(tmp_path / "clear.png")
    Image.new("L", (5, 4), 7).save(tmp_path / "gray.png")
    folder = ImageFolder(tmp_path)
    assert folder.open("turned.jpg").size == (10, 20)
    for name in ("turned.jpg", "palette.gif", "print.jpg", "clear.png", "gray.png"):
        assert folder.open(name).mode == "RGB"
    assert folder.open("gray.png").getpixel((0, 0)) == (7, 7, 7)


def test_references_stay_inside(tmp_path: Path) -> None:
    (tmp_path / "in" / "deep").mkdir(parents=True)
    (tmp_path / "out.jpg").write_bytes(jpeg((1, 2, 3)))
    (tmp_path / "in" / "deep" / "a.jpg").write_bytes(jpeg((1, 2, 3)))
    folder = ImageFolder(tmp_path / "in")
    assert folder.open("deep/a.jpg").size == folder.open("./deep//a.jpg").size == (8, 8)
    refused = ["../out.jpg", "deep/../../out.jpg", str(tmp_path / "out.jpg"), "", ".", "..\\a"]
    for ref in refused:
        with pytest.raises(ValueError, match=r"is no path inside|is not at"):
            folder.open(ref)
    with pytest.raises(ValueError, match=r"image 'deep/b.jpg' is not at .*deep/b.jpg; check"):
        folder.digest("deep/b.jpg")


def test_corrupt_images_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = jpeg((200, 100, 50), (64, 64))
    for name, data in (
        ("cut.jpg", whole[:300]), ("empty.jpg", b""), ("text.jpg", b"<html>not found</html>"),
        ("cut.png", b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR\0\0"),
    ):  # fmt: skip
        (tmp_path / name).write_bytes(data)
        with pytest.raises(CorruptImageError, match=f"{name}.*cannot be read as an image"):
            ImageFolder(tmp_path).open(name)
        assert ImageFolder(tmp_path).digest(name) == hashlib.sha256(data).hexdigest()
    (tmp_path / "large.jpg").write_bytes(whole)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 1000)  # an error above twice as many
    with pytest.raises(CorruptImageError, match=r"large.jpg.*decompression bomb"):
        ImageFolder(tmp_path).open("large.jpg")


# ---- tar files ----


def add(archive: tarfile.TarFile, name: str, data: bytes) -> None:
    entry = tarfile.TarInfo(name)
    entry.size = len(data)
    archive.addfile(entry, io.BytesIO(data))


def make_tar(path: Path, members: dict[str, bytes]) -> Path:
    with tarfile.open(path, "w") as archive:
        for name, data in members.items():
            add(archive, name, data)
        link = tarfile.TarInfo("link.jpg")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        archive.addfile(link)
    return path


def test_images_come_out_of_tars_whole_or_cut(tmp_path: Path) -> None:
    images = {f"img/{n}.jpg": jpeg((n, 2 * n, 255 - n), (30 + n, 20)) for n in range(40)}
    names = list(images)
    one = make_tar(tmp_path / "1.tar", {n: images[n] for n in names[:25]})
    two = make_tar(tmp_path / "2.tar", {f"./{n}": images[n] for n in names[25:]})
    data = one.read_bytes()
    parts = []
    for at in range(3):  # cut in the middle of a file and of a header
        parts.append(tmp_path / f"part-{at}")
        parts[-1].write_bytes(data[at * len(data) // 3 : (at + 1) * len(data) // 3])
    for tars, known in (((one, two), names), (tuple(parts), names[:25]), ((*parts, two), names)):
        folder = ImageFolder(None, tars)
        for name in known:
            assert folder.digest(name) == hashlib.sha256(images[name]).hexdigest()
            assert folder.open(name).size == (30 + names.index(name), 20)
        for ref in ("link.jpg", "img/99.jpg"):
            with pytest.raises(ValueError, match="is not at"):
                folder.open(ref)
    (tmp_path / "img").mkdir()
    (tmp_path / "img" / "3.jpg").write_bytes(jpeg((0, 0, 0), (9, 9)))
    both = ImageFolder(tmp_path, (one,))
    assert both.open("img/3.jpg").size == (9, 9) and both.open("img/4.jpg").size == (34, 20)


def test_bad_tars_name_the_way_out(tmp_path: Path) -> None:
    packed = tmp_path / "a.tar.gz"
    packed.write_bytes(gzip.compress(make_tar(tmp_path / "a.tar", {"a": b"x"}).read_bytes()))
    with pytest.raises(ValueError, match=r"a.tar.gz is compressed.*unpack it"):
        ImageFolder(None, (packed,)).open("a")
    (tmp_path / "no.tar").write_bytes(b"x" * 2000)
    with pytest.raises(ValueError, match=r"no.tar hold no file of a tar archive"):
        ImageFolder(None, (tmp_path / "no.tar",)).open("a")
    with pytest.raises(ValueError, match=r"gone.tar is not a file"):
        ImageFolder(None, (tmp_path / "gone.tar",)).open("a")


def test_digests_of_many(tmp_path: Path) -> None:
    for name in ("a.jpg", "b.jpg"):
        (tmp_path / name).write_bytes(jpeg((1, 2, 3)))
    found = Pictures(ImageFolder(tmp_path), ["a.jpg", "", "b.jpg", "a.jpg"]).digests()
    assert found[0] == found[2] == found[3] and found[1] == "" and len(found[0]) == 64


# ---- collections ----


def write_collection(folder: Path) -> Path:
    """Three documents (an image, a text with an image, nothing) and two queries (text, image)."""
    (folder / "qrels").mkdir(parents=True)
    (folder / "a.jpg").write_bytes(jpeg((255, 0, 0)))
    documents = [
        {"_id": "d1", "title": "", "text": "", "image": "a.jpg"},
        {"_id": "d2", "title": "T", "text": "two", "image": "b.jpg"},
        {"_id": "d3", "text": "", "image": None},
    ]
    queries = [{"_id": "q1", "text": "red"}, {"_id": "q2", "text": None, "image": "c.jpg"}]
    for name, records in (("corpus", documents), ("queries", queries)):
        lines = "".join(json.dumps(record) + "\n" for record in records)
        (folder / f"{name}.jsonl").write_text(lines)
    (folder / "qrels" / "test.tsv").write_text("q1\td1\t1\nq1\td2\t2\nq2\td2\t1\n")
    (folder / "excluded.tsv").write_text("q1\td3\nq2\td1\n")
    return folder


def test_a_collection_in_both_directions(tmp_path: Path) -> None:
    folder = write_collection(tmp_path)
    excluded = folder / "excluded.tsv"
    forth = load_image_text(folder, excluded_path=excluded)
    assert forth.doc_ids == ["d1", "d2", "d3"] and forth.images == ["a.jpg", "b.jpg", ""]
    assert forth.queries == ["red", ""] and forth.query_images == ["", "c.jpg"]
    assert forth.qrels == {"q1": {"d1": 1, "d2": 2}, "q2": {"d2": 1}}
    assert forth.excluded == {"q1": {"d3"}, "q2": {"d1"}}
    assert forth.info["n_empty"] == 1 and forth.info["n_empty_queries"] == 0
    assert forth.image_folder is not None and forth.image_folder.open("a.jpg").size == (8, 8)

    back = load_image_text(folder, direction=Direction.image_to_text, excluded_path=excluded)
    assert back.doc_ids == ["q1", "q2"] and back.texts == ["red", ""]
    assert back.images == ["", "c.jpg"]
    assert back.query_ids == ["d1", "d2"] and back.queries == ["", "T two"]  # d3: no judgment
    assert back.query_images == ["a.jpg", "b.jpg"]
    assert back.qrels == {"d1": {"q1": 1}, "d2": {"q1": 2, "q2": 1}}
    assert back.excluded == {"d1": {"q2"}}


def test_documents_with_neither_text_nor_image_follow_the_knob(tmp_path: Path) -> None:
    folder = write_collection(tmp_path)
    kept = load_image_text(folder, empty=EmptyDocuments.drop)
    assert kept.doc_ids == ["d1", "d2"] and kept.info["n_dropped_empty"] == 1


def test_bad_collections(tmp_path: Path) -> None:
    folder = write_collection(tmp_path / "x")
    with pytest.raises(ConfigError, match="dataset=image_text needs"):
        DatasetConfig(kind=DatasetKind.image_text)
    config = DatasetConfig(kind=DatasetKind.image_text, path=str(folder))
    assert load_dataset(config).images[0] == "a.jpg"
    (folder / "corpus.jsonl").write_text('{"_id": "d1", "text": "", "image": 3}\n')
    with pytest.raises(
        DataError, match=r"corpus.jsonl, line 1: 'image' of record 'd1' is a number"
    ):
        list(read_items(folder / "corpus.jsonl"))
    (folder / "corpus.jsonl").write_text('{"_id": "d1"}\n')
    with pytest.raises(DataError, match="no 'text' in record 'd1'"):
        list(read_items(folder / "corpus.jsonl"))
    (folder / "corpus.jsonl").write_text('{"_id": "d1", "text": "x"}\n{"_id": "d2", "text": ""}\n')
    (folder / "queries.jsonl").write_text('{"_id": "q1", "text": "x"}\n{"_id": "q2", "text": ""}\n')
    with pytest.raises(DataError, match="no record has an 'image'; choose dataset=beir"):
        load_image_text(folder)


def test_flickr8k_in_both_directions(collections: Path) -> None:
    forth = load_image_text(collections / "flickr8k-800")
    back = load_image_text(collections / "flickr8k-800", direction=Direction.image_to_text)
    assert (len(forth.doc_ids), len(forth.query_ids)) == (800, 4000)
    assert (len(back.doc_ids), len(back.query_ids)) == (4000, 800)
    assert {len(row) for row in back.qrels.values()} == {5}
    assert back.info["n_duplicate_texts"] == 2 and forth.info["n_empty"] == 0
    assert forth.image_folder is not None
    assert forth.image_folder.open(forth.images[0]).size == (150, 200)
