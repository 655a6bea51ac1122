#!/usr/bin/env python3
"""Writes an OCI archive, so that a container runtime needs no registry: with one static busybox in it, for tests, or
with Fairlead's own programs and nothing else.

    mkimage.py OUT.tar NAME...      each NAME (localhost/pause:1) becomes an entry of the archive's index
    mkimage.py --rootfs DIR         the same files as a directory (podman run --rootfs)
    mkimage.py --fairlead DIR --arch ARCH OUT.tar NAME...
                                    Fairlead's image (ARCH: amd64, arm64), of the static programs in DIR

What is written depends on the files' content and the arguments alone: no time, owner or host is in it.
"""

import argparse
import gzip
import hashlib
import io
import json
import os
import sys
import tarfile

BUSYBOX = "/bin/busybox"
DIRECTORIES = ("bin", "dev", "etc", "proc", "sys", "tmp", "run")
APPLETS = ("sh", "sleep", "ip", "ping", "cat", "ls")
PROCESS = ["/bin/busybox", "sleep", "2147483647"]


def tar_of(directories, programs, links=()):
    """A layer: directories, programs (path and content), symbolic links (path and target)."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        for name in directories:
            entry = tarfile.TarInfo(name)
            entry.type, entry.mode = tarfile.DIRTYPE, 0o755
            tar.addfile(entry)
        for name, content in programs:
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(content), 0o755
            tar.addfile(entry, io.BytesIO(content))
        for name, target in links:
            entry = tarfile.TarInfo(name)
            entry.type, entry.linkname = tarfile.SYMTYPE, target
            tar.addfile(entry)
    return out.getvalue()


def content_of(path):
    with open(path, "rb") as file:
        return file.read()


def layer():
    """The one layer of the tests' image: busybox, its names and the mount points."""
    links = [("bin/" + name, "busybox") for name in APPLETS]
    return tar_of(DIRECTORIES, [("bin/busybox", content_of(BUSYBOX))], links)


def fairlead_layer(directory):
    """The one layer of Fairlead's image: its programs in /usr/bin, from scratch."""
    names = ("fairlead", "fairleadd", "fairlead-vswitch")
    programs = [("usr/bin/" + name, content_of(os.path.join(directory, name))) for name in names]
    return tar_of(("usr", "usr/bin"), programs)


class Blobs(dict):
    """Content by digest."""

    def put(self, content, media_type):
        digest = hashlib.sha256(content).hexdigest()
        self[digest] = content
        return {"mediaType": media_type, "digest": "sha256:" + digest, "size": len(content)}


def archive(out, names, files, process, architecture="amd64"):
    """Writes the OCI image layout as one tar. `files`: the one layer as a tar, which is stored compressed."""
    oci = "application/vnd.oci.image."
    blobs = Blobs()
    config = {
        "architecture": architecture,
        "os": "linux",
        "config": {"Entrypoint": process, "Env": ["PATH=/bin:/usr/bin"]},
        "rootfs": {"type": "layers", "diff_ids": ["sha256:" + hashlib.sha256(files).hexdigest()]},
        "history": [{"created_by": "mkimage.py"}],
    }
    manifest = {
        "schemaVersion": 2,
        "mediaType": oci + "manifest.v1+json",
        "config": blobs.put(json.dumps(config).encode(), oci + "config.v1+json"),
        "layers": [blobs.put(gzip.compress(files, mtime=0), oci + "layer.v1.tar+gzip")],
    }
    manifest_at = blobs.put(json.dumps(manifest).encode(), oci + "manifest.v1+json")
    manifest_at["platform"] = {"architecture": architecture, "os": "linux"}

    def named(name):
        keys = ("io.containerd.image.name", "org.opencontainers.image.ref.name")
        return {**manifest_at, "annotations": dict.fromkeys(keys, name)}

    index = {"schemaVersion": 2, "manifests": [named(name) for name in names]}
    with tarfile.open(out, "w") as tar:

        def add(name, content):
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))

        add("oci-layout", b'{"imageLayoutVersion":"1.0.0"}')
        add("index.json", json.dumps(index).encode())
        for digest, content in blobs.items():
            add("blobs/sha256/" + digest, content)


def rootfs(directory):
    """Unpacks the layer."""
    os.makedirs(directory, exist_ok=True)
    with tarfile.open(fileobj=io.BytesIO(layer())) as tar:
        tar.extractall(directory)


def main():
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("--rootfs", metavar="DIR")
    parser.add_argument("--fairlead", metavar="DIR")
    parser.add_argument("--arch", default="amd64", choices=("amd64", "arm64"))
    parser.add_argument("rest", nargs="*")
    given = parser.parse_args()
    if given.rootfs:
        rootfs(given.rootfs)
    elif len(given.rest) < 2:
        sys.exit(__doc__)
    elif given.fairlead:
        process = ["/usr/bin/fairleadd"]
        archive(given.rest[0], given.rest[1:], fairlead_layer(given.fairlead), process, given.arch)
    else:
        archive(given.rest[0], given.rest[1:], layer(), PROCESS)


if __name__ == "__main__":
    main()
