#!/usr/bin/env python3
"""Fetches what real_allocator needs of a PyTorch release: fetch_release.py VERSION… --into FOLDER

Of a CUDA wheel (500 to 900 MB) only libc10, libc10_cuda, their headers and version.py are wanted. A
wheel is a zip file and PyPI answers range requests, so those few megabytes are all that is downloaded.
They end up in FOLDER/VERSION/torch/…; a release that is there already is left alone. The CUDA runtime
headers of the same major version end up in FOLDER/cuda12 or FOLDER/cuda13.
"""

import argparse
import io
import pathlib
import re
import sys
import urllib.request
import zipfile

INDEX = "https://pypi.org/simple/{}/"
WANTED = re.compile(
    r"torch/(lib/(libc10|libc10_cuda)\.so|version\.py"
    r"|include/(c10|torch/headeronly)/.*)$"
    r"|torch\.libs/.*"
)
# The projects that hold the headers of a CUDA version; crt/ comes with the compiler.
CUDA_HEADERS = {
    12: (
        ("nvidia-cuda-runtime-cu12", re.compile(r"nvidia/cuda_runtime/include/(.*)$")),
        ("nvidia-cuda-nvcc-cu12", re.compile(r"nvidia/cuda_nvcc/include/(crt/.*)$")),
    ),
    13: (
        ("nvidia-cuda-runtime", re.compile(r"nvidia/cu13/include/(.*)$")),
        ("nvidia-cuda-crt", re.compile(r"nvidia/cu13/include/(crt/.*)$")),
    ),
}


class RemoteFile(io.RawIOBase):
    """A file behind a URL, read in blocks of a megabyte that are kept."""

    BLOCK = 1 << 20

    def __init__(self, url):
        super().__init__()
        self.url, self.at, self.blocks = url, 0, {}
        request = urllib.request.Request(url, headers={"Range": "bytes=0-0"})
        with urllib.request.urlopen(request, timeout=120) as reply:
            if reply.status != 206:
                raise OSError(f"{url}: the server does not answer range requests")
            self.size = int(reply.headers["Content-Range"].rsplit("/", 1)[1])

    def seekable(self):
        return True

    def readable(self):
        return True

    def tell(self):
        return self.at

    def seek(self, offset, whence=io.SEEK_SET):
        self.at = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self.at, io.SEEK_END: self.size}[whence]
        return self.at

    def readinto(self, buffer):
        if self.at >= self.size:
            return 0
        number, offset = divmod(self.at, self.BLOCK)
        part = self.block(number)[offset : offset + len(buffer)]
        buffer[: len(part)] = part
        self.at += len(part)
        return len(part)

    def block(self, number):
        if number not in self.blocks:
            first = number * self.BLOCK
            last = min(first + self.BLOCK, self.size) - 1
            request = urllib.request.Request(self.url, headers={"Range": f"bytes={first}-{last}"})
            with urllib.request.urlopen(request, timeout=120) as reply:
                self.blocks[number] = reply.read()
        return self.blocks[number]


def wheel_url(project, pattern):
    """The newest wheel of the project whose file name matches the pattern."""
    with urllib.request.urlopen(INDEX.format(project), timeout=120) as reply:
        page = reply.read().decode()
    links = [link.split("#")[0] for link in re.findall(r'href="([^"]+)"', page)]
    found = [link for link in links if re.search(pattern, link.rsplit("/", 1)[1])]
    if not found:
        raise OSError(f"no wheel of {project} matches {pattern}")
    return found[-1]


def unpack(url, rename):
    """Writes those members for which rename() gives a path."""
    with zipfile.ZipFile(io.BufferedReader(RemoteFile(url), RemoteFile.BLOCK)) as wheel:
        members = sorted(wheel.infolist(), key=lambda member: member.header_offset)
        for member in members:
            path = rename(member.filename)
            if path is None or member.is_dir():
                continue
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(wheel.read(member))


def fetch_torch(version, folder):
    home = folder / version
    if not (home / "done").exists():
        url = wheel_url("torch", rf"^torch-{re.escape(version)}-(\d+-)?cp311-cp311-manylinux.*x86_64")
        unpack(url, lambda name: home / name if WANTED.match(name) else None)
        if not (home / "torch/lib/libc10_cuda.so").exists():
            raise OSError(f"{url} is not a CUDA build")
        (home / "done").touch()
    return home


def cuda_major(home):
    """12 or 13: which libcudart the release links."""
    names = re.findall(rb"libcudart\.so\.(\d+)", (home / "torch/lib/libc10_cuda.so").read_bytes())
    return int(names[0])


def fetch_cuda_headers(major, folder):
    home = folder / f"cuda{major}"
    if not (home / "done").exists():
        for project, wanted in CUDA_HEADERS[major]:

            def rename(name, wanted=wanted):
                match = wanted.match(name)
                return home / match[1] if match else None

            pattern = rf"^{project.replace('-', '_')}-{major}\..*manylinux.*x86_64"
            unpack(wheel_url(project, pattern), rename)
        (home / "done").touch()
    return home


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("versions", nargs="+", metavar="VERSION")
    parser.add_argument("--into", type=pathlib.Path, required=True, metavar="FOLDER")
    arguments = parser.parse_args()
    failed = 0
    for version in arguments.versions:
        try:
            home = fetch_torch(version, arguments.into)
            headers = fetch_cuda_headers(cuda_major(home), arguments.into)
            print(f"{version}: {home}, CUDA headers in {headers}", flush=True)
        except OSError as error:
            print(f"{version}: {error}", file=sys.stderr, flush=True)
            failed += 1
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
