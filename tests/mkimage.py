#!/usr/bin/env python3
"""Writes an OCI archive that holds one static busybox, so that a container runtime needs no registry.

    mkimage.py OUT.tar NAME...      each NAME (localhost/pause:1) becomes an entry of the archive's index
    mkimage.py --rootfs DIR         the same files as a directory (podman run --rootfs)
"""

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


def layer():
    """The one layer: busybox, its names and the mount points."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        for name in DIRECTORIES:
            entry = tarfile.TarInfo(name)
            entry.type, entry.mode = tarfile.DIRTYPE, 0o755
            tar.addfile(entry)
        with open(BUSYBOX, "rb") as file:
            program = file.read()
        entry = tarfile.TarInfo("bin/busybox")
        entry.size, entry.mode = len(program), 0o755
        tar.addfile(entry, io.BytesIO(program))
        for name in APPLETS:
            entry = tarfile.TarInfo("bin/" + name)
            entry.type, entry.linkname = tarfile.SYMTYPE, "busybox"
            tar.addfile(entry)
    return out.getvalue()


class Blobs(dict):
    """Content by digest."""

    def put(self, content, media_type):
        digest = hashlib.sha256(content).hexdigest()
        self[digest] = content
        return {"mediaType": media_type, "digest": "sha256:" + digest, "size": len(content)}


def archive(out, names):
    """Writes the OCI image layout as one tar."""
    oci = "application/vnd.oci.image."
    blobs, files = Blobs(), layer()
    files_at = blobs.put(files, oci + "layer.v1.tar")
    config = {
        "architecture": "amd64",
        "os": "linux",
        "config": {"Entrypoint": PROCESS, "Env": ["PATH=/bin"]},
        "rootfs": {"type": "layers", "diff_ids": [files_at["digest"]]},
        "history": [{"created_by": "mkimage.py"}],
    }
    manifest = {
        "schemaVersion": 2,
        "mediaType": oci + "manifest.v1+json",
        "config": blobs.put(json.dumps(config).encode(), oci + "config.v1+json"),
        "layers": [files_at],
    }
    manifest_at = blobs.put(json.dumps(manifest).encode(), oci + "manifest.v1+json")
    manifest_at["platform"] = {"architecture": "amd64", "os": "linux"}

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


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    if sys.argv[1] == "--rootfs":
        rootfs(sys.argv[2])
    else:
        archive(sys.argv[1], sys.argv[2:])
