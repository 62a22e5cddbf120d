"""Images by reference: opened when they are needed, from a folder or out of tar files.

In: a reference, the path a collection gives an image. Out: its bytes' digest, or its pixels. The
references come from files that others wrote, and so do the images. What pixels mean is left to
other modules.
"""

from __future__ import annotations

import hashlib
import io
import tarfile
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from PIL.Image import Image


class CorruptImageError(ValueError):
    """A file that is there and is no readable image."""


@dataclass(frozen=True)
class ImageFolder:
    """Where a collection's images are.

    Attributes:
        root: the folder that references are relative to; None = everything is in `tars`.
        tars: uncompressed tar files, whole ones or the parts of a cut one in order; a reference
            is a member's name. A file under `root` comes first.
    """

    root: Path | None
    tars: tuple[Path, ...] = ()

    def open(self, ref: str) -> Image:
        """The image as RGB, turned as its EXIF orientation says; of an animation the first frame.

        Raises:
            CorruptImageError: what the reference names is no readable image, or its pixels exceed
                Pillow's bound against decompression bombs.
            ValueError: nothing has this name, or the name leads out of the folder.
        """
        from PIL import Image, ImageOps

        data, where = self._read(ref)
        try:
            with Image.open(io.BytesIO(data)) as image:
                return ImageOps.exif_transpose(image).convert("RGB")
        except MemoryError:
            raise
        except Exception as error:  # decoders raise anything for bytes they do not like
            raise CorruptImageError(
                f"{where} (image {ref!r}) cannot be read as an image ({error}); replace the file"
            ) from error

    def digest(self, ref: str) -> str:
        """sha256 of the file's bytes.

        Raises:
            ValueError: as for `open`; a corrupt image has a digest, too.
        """
        return hashlib.sha256(self._read(ref)[0]).hexdigest()

    def _read(self, ref: str) -> tuple[bytes, str]:
        """(bytes, the file they are from)."""
        name = _inside(ref)
        if self.root is not None and (self.root / name).is_file():
            return (self.root / name).read_bytes(), str(self.root / name)
        place = _members(self.tars).get(name) if self.tars else None
        if place is None:
            places = [str(self.root / name)] if self.root is not None else []
            places += [str(tar) for tar in self.tars]
            raise ValueError(
                f"image {ref!r} is not at {' or in '.join(places)}; check the images' folder"
            )
        with _Joined(self.tars) as joined:
            joined.seek(place[0])
            return joined.read(place[1]), " + ".join(str(tar) for tar in self.tars)


@dataclass(frozen=True)
class Pictures:
    """Images beside a list of things: a reference each, "" for none."""

    folder: ImageFolder
    refs: Sequence[str]

    def digests(self) -> list[str]:
        """sha256 of each reference's file, "" for none; every reference is read once."""
        found = {ref: self.folder.digest(ref) for ref in dict.fromkeys(self.refs) if ref}
        return [found.get(ref, "") for ref in self.refs]


def _inside(ref: str) -> str:
    """A reference as a plain relative path. Links that lie in the folder are its owner's matter."""
    path = PurePosixPath(ref)
    if path.is_absolute() or ".." in path.parts or not path.parts or "\\" in ref or "\0" in ref:
        raise ValueError(
            f"image {ref!r} is no path inside the images' folder; write it relative to the "
            "folder, with / and without .."
        )
    return str(path)


@lru_cache(maxsize=4)
def _members(tars: tuple[Path, ...]) -> dict[str, tuple[int, int]]:
    """{member: (start of its bytes, how many)} over the joined files; reads all headers once."""
    found: dict[str, tuple[int, int]] = {}
    with _Joined(tars) as joined:
        start = joined.read(6)
        joined.seek(0)
        if start[:2] == b"\x1f\x8b" or start[:3] == b"BZh" or start == b"\xfd7zXZ\0":
            raise ValueError(
                f"{tars[0]} is compressed, so single images cannot be read from it; unpack it and "
                "give the folder"
            )
        # Zero blocks end a tar file; whole ones in a row go on after them.
        with tarfile.open(fileobj=joined, mode="r:", ignore_zeros=True) as archive:
            while (member := archive.next()) is not None:
                if member.isreg():
                    name = str(PurePosixPath(member.name))
                    found[name] = member.offset_data, member.size
                archive.members = []  # type: ignore[attr-defined]  # else a million are kept
    if not found:
        raise ValueError(
            f"{', '.join(map(str, tars))} hold no file of a tar archive; name whole archives, or "
            "all parts of one in order"
        )
    return found


class _Joined(io.RawIOBase):
    """Files in a row, read as one."""

    def __init__(self, paths: Sequence[Path]) -> None:
        super().__init__()
        for path in paths:
            if not path.is_file():
                raise ValueError(f"{path} is not a file; give the tar files of the images")
        self._files = [path.open("rb") for path in paths]
        self._sizes = [path.stat().st_size for path in paths]
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: sum(self._sizes)}[whence]
        self._at = base + offset
        return self._at

    def read(self, size: int = -1) -> bytes:
        parts: list[bytes] = []
        left = sum(self._sizes) - self._at if size < 0 else size
        start = 0
        for file, length in zip(self._files, self._sizes, strict=True):
            if left > 0 and start <= self._at < start + length:
                file.seek(self._at - start)
                parts.append(file.read(min(left, start + length - self._at)))
                self._at += len(parts[-1])
                left -= len(parts[-1])
            start += length
        return b"".join(parts)

    def close(self) -> None:
        for file in self._files:
            file.close()
        super().close()
