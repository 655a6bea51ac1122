#!/usr/bin/env python3
"""Finds checks in the tests' shell functions that decide nothing. In a function that is called as a condition (`eventually 10 f`, `f ||`,
`if f`, `! f`), and in what it calls, bash's `set -e` is off: its status is that of its last command. A check before that one must be joined
to the next (`&&`) or leave the function itself (`|| return 1`). Also finds what a file defines twice."""
import glob
import os
import re
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.realpath(__file__)))
FOLDERS = ["tests", "tests/cluster", "lab", "lab/kubelet", "lab/tests"]
HEAD = re.compile(r"(\w+)\(\) [{(](.*)")
CHECK = re.compile(r"(?:equal|\[|\[\[|!|test|diff|cmp|jq -e|grep|running|gone|is|\w+_are|\w+_is) ")
# Where a command's status is asked for; `measure` and `eventually` ask for that of their arguments.
ASKED = re.compile(r"(?:\b(?:eventually|measure) \S+|\b(?:if|while|until)(?: !)?|(?<=[\s(;{])!)\s+(\w+)")
LEFT_OF = re.compile(r"(?:^|[;({]|\bthen\b|\bdo\b|&&|\|\|)\s*(\w+)\b(?:[^;|&\"']|\"[^\"]*\"|'[^']*')*(?:&&|\|\|)")


def functions(text):
    """Each function's name and its commands, a number of a line and a text each: what is indented more belongs to what is above it."""
    found, commands = {}, None
    for number, line in enumerate(text.splitlines(), 1):
        line = re.sub(r"(^|\s)# .*", "", line).rstrip()
        head = HEAD.match(line)
        if head:
            commands = found[head[1]] = []
            if head[2].endswith(("}", ")")):
                commands += [(number, part) for part in re.split(r"; (?![^(]*\))", head[2].strip(" {}"))]
                commands = None
        elif line[:1] in ("}", ")"):
            commands = None
        elif commands is not None and line:
            if re.match(r" {4}\S", line) and line.strip() not in ("fi", "done", "esac", "}"):
                commands.append((number, line.strip()))
            elif commands:
                commands[-1] = (commands[-1][0], commands[-1][1] + "\n" + line.strip())
    return found


def conditions(text):
    return set(ASKED.findall(text)) | {name for line in text.splitlines() for name in LEFT_OF.findall(line)}


def main():
    texts = {path: open(path, encoding="utf-8").read() for folder in FOLDERS for path in sorted(glob.glob(f"{ROOT}/{folder}/*.sh"))}
    defined = {path: functions(text) for path, text in texts.items()}
    sourced = [path for path, text in texts.items() if not text.startswith("#!")]

    def places(name, path):
        return [path] if name in defined[path] else [other for other in sourced if name in defined[other]]

    due = [(place, name) for path, text in texts.items() for name in conditions(text) for place in places(name, path)]
    seen, faults = set(), []
    while due:
        path, name = due.pop()
        if (path, name) in seen:
            continue
        seen.add((path, name))
        commands = defined[path][name]
        for number, command in commands:
            for called in set(re.findall(r"(?:^|[\n;({!]|&&|\|\|)\s*(\w+)", command)):
                due += [(place, called) for place in places(called, path)]
            if (number, command) != commands[-1] and CHECK.match(command) and not re.search(r"&&|\|\|", command):
                where = f"{os.path.relpath(path, ROOT)}:{number}"
                faults.append(f"{where}: {name} is called as a condition, and this check decides nothing: {command.splitlines()[0]}")
    for path, text in texts.items():
        heads = [head[1] for head in map(HEAD.match, text.splitlines()) if head]
        for name in sorted({name for name in heads if heads.count(name) > 1}):
            faults.append(f"{os.path.relpath(path, ROOT)}: {name} is defined twice, and the first is never called")
    print("\n".join(sorted(faults)), end="\n" if faults else "")
    return bool(faults)


if __name__ == "__main__":
    sys.exit(main())
