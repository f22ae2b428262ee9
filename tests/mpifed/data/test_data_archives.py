"""Archives: names and bytes of their files, and archives that are damaged anywhere."""

from __future__ import annotations

import io
import tarfile
import zipfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpifed.data.archives import contents, names
from mpifed.errors import InputError

FILES = {"a/one.txt": b"first " * 50, "b.txt": b"second", "empty": b""}


def zip_of(compression: int) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", compression) as archive:
        for name, content in FILES.items():
            archive.writestr(name, content)
    return file.getvalue()


def tar_of(mode: str) -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode=mode) as archive:
        for name, content in FILES.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return file.getvalue()


ARCHIVES = {
    "stored.zip": zip_of(zipfile.ZIP_STORED),
    "deflated.zip": zip_of(zipfile.ZIP_DEFLATED),
    "bzip2.zip": zip_of(zipfile.ZIP_BZIP2),
    "lzma.zip": zip_of(zipfile.ZIP_LZMA),
    "plain.tar": tar_of("w:"),
    "gzip.tar.gz": tar_of("w:gz"),
    "gzip.tgz": tar_of("w:gz"),
    "xz.tar.xz": tar_of("w:xz"),
}


@pytest.mark.parametrize("name", ARCHIVES)
def test_files_come_back(tmp_path: Path, name: str):
    path = tmp_path / name
    path.write_bytes(ARCHIVES[name])
    assert dict(contents(path, lambda name: True)) == FILES
    assert names(path) == sorted(FILES)
    assert dict(contents(path, "b.txt".__eq__)) == {"b.txt": b"second"}


changes = st.tuples(st.sampled_from(sorted(ARCHIVES)), st.integers(0, 10**6), st.binary(max_size=9))


@given(changes, st.booleans())
def test_damage_anywhere_is_refused_or_does_nothing(tmp_path_factory, change, cut):
    name, at, noise = change
    whole = ARCHIVES[name]
    at %= len(whole)
    path = tmp_path_factory.mktemp("damaged") / name
    path.write_bytes(whole[:at] + noise + (b"" if cut else whole[at + len(noise) :]))
    try:
        found = dict(contents(path, lambda name: True))
    except InputError as refused:
        assert str(path) in str(refused)
    else:
        assert all(isinstance(content, bytes) for content in found.values())
