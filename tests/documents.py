#!/usr/bin/env python3
"""Checks what the documents name: each relative link, each heading that a link names, and each file of this repository in backticks
is there (`engine/tests/faults.rs` is found by the end of its path). A cell of a table in SPECIFICATION.md and docs/ has at most 40
words. Each Rust file that SPECIFICATION.md names as a proof has tests in it. Each alert has a section of the runbook, to which it links,
and each section there an alert."""
import os
import re
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.realpath(__file__)))
SKIPPED = {"target", "dist", "corpus"}  # and what begins with a dot
HISTORY = {"CHANGELOG.md"}  # it names what once was
NAMED = re.compile(r"`([A-Za-z0-9_.-]+(?:/[A-Za-z0-9_.-]+)*\.(?:rs|sh|py|md|proto|service|toml|go))`")
ROOMS = re.compile(r"`((?:benches|cni|contest|daemon|engine|fuzz|host|ipam|kubelet|lab|shim|sriov|tests)(?:/[A-Za-z0-9_-]+)+)/?`")
LINK = re.compile(r"\]\(([^)#:\s]*)(#[^)\s]*)?\)")
MOST_WORDS = 40


def files():
    for directory, below, names in os.walk(ROOT):
        below[:] = [name for name in below if name not in SKIPPED and not name.startswith(".")]
        for name in names:
            yield os.path.relpath(os.path.join(directory, name), ROOT)


def prose(text):
    """The lines that are no code, each with its number."""
    code = False
    for number, line in enumerate(text.splitlines(), 1):
        if line.startswith("```"):
            code = not code
        elif not code and not line.startswith("    "):
            yield number, line


def anchors(path):
    found = set()
    for _, line in prose(open(os.path.join(ROOT, path), encoding="utf-8").read()):
        if line.startswith("#"):
            words = re.sub(r"[^\w\- ]", "", line.lstrip("#").strip().lower())
            found.add("#" + words.replace(" ", "-"))
    return found


def ends(token, other):
    return other == token or other.endswith("/" + token)


def faults(path, everything):
    for number, line in prose(open(os.path.join(ROOT, path), encoding="utf-8").read()):
        where = f"{path}:{number}"
        for target, anchor in LINK.findall(line):
            there = os.path.normpath(os.path.join(os.path.dirname(path), target)) if target else path
            if not os.path.exists(os.path.join(ROOT, there)):
                yield f"{where}: no such file: {target}"
            elif anchor and anchor not in anchors(there):
                yield f"{where}: {there} has no heading {anchor}"
        for token in NAMED.findall(line) + ROOMS.findall(line):
            below = lambda other: f"/{token}/" in f"/{other}"
            if not any(ends(token, other) or below(other) for other in everything):
                yield f"{where}: no such file in this repository: {token}"
        if line.startswith("|") and path.startswith(("SPECIFICATION", "docs")):
            for cell in line.strip().strip("|").split(" | "):
                if len(cell.split()) > MOST_WORDS:
                    yield f"{where}: a cell of {len(cell.split())} words: {cell[:60]}…"


SPECIFICATION = "SPECIFICATION.md"


def proofs_without_a_test(everything):
    """The proofs stand in the last cell of a row, below the word "proof"."""
    heading = None
    for number, line in prose(open(os.path.join(ROOT, SPECIFICATION), encoding="utf-8").read()):
        last = line.strip().strip("|").split(" | ")[-1].strip() if line.startswith("|") else None
        heading = None if last is None else heading or last
        for token in NAMED.findall(last) if heading == "proof" else []:
            named = [path for path in everything if token.endswith(".rs") and ends(token, path)]
            if named and not any("#[test]" in open(os.path.join(ROOT, path), encoding="utf-8").read() for path in named):
                yield f"{SPECIFICATION}:{number}: no test in {token}"


RULES = "deploy/monitoring/fairlead.rules.yaml"
RUNBOOK = "docs/troubleshooting.md"


def alerts_without_a_section():
    rules = open(os.path.join(ROOT, RULES), encoding="utf-8").read()
    alerts = re.findall(r"- alert: (\w+)", rules)
    links = re.findall(r"runbook_url: \S+/" + re.escape(RUNBOOK) + r"(#\S+)", rules)
    told = {anchor for anchor in anchors(RUNBOOK) if anchor.startswith("#fairlead")}
    for alert in alerts:
        if "#" + alert.lower() not in told:
            yield f"{RUNBOOK}: no section of the alert {alert}"
    if links != ["#" + alert.lower() for alert in alerts]:
        yield f"{RULES}: not every alert links to its own section of {RUNBOOK}"
    for anchor in sorted(told - set(links)):
        yield f"{RUNBOOK}: {anchor} is the section of no alert"


def main():
    everything = sorted(files())
    documents = [path for path in everything if path.endswith(".md") and path not in HISTORY]
    found = [fault for path in documents for fault in faults(path, everything)]
    found += proofs_without_a_test(everything)
    found += alerts_without_a_section()
    print("\n".join(found) if found else f"{len(documents)} documents, every link resolves")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
