#!/usr/bin/env python3
"""What an ADD or DEL runs of the daemon: `usual_path.txt`, which build.rs hands to the linker.

usage: usual_path.py            makes usual_path.txt anew, by the programs in dist/ and the cluster's in .cache/k8s/now, which
                                `make api-server` builds (root, x86_64; five minutes)
       usual_path.py --check    whether the functions that it names are in dist/fairleadd, in one stretch

A function belongs to it if it was entered after the daemon's start, in the cases of the latency suite below. Each function's first
instruction is a breakpoint until it is met (ptrace(2)), so that one that runs once is found as well as one that runs often.

A line is a part of a section's name, or of an object file's of the C library: the symbol's mangled name (RFC 2603), with a `*` where it
has what another compiler or another edit makes different. In the order in which they were entered first.
"""

import ctypes
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve()
LIST = HERE.with_suffix(".txt")
DIST = HERE.parent.parent / "dist"
SECTION = ".usual_path"
# Of the latency suite: its cases, and what a function's name must have in it. Beside whole pods' calls the daemon follows the cluster's
# API, which is the work of other crates.
SUITES = [
    (["--only", "add-one", "--only", "del-one", "--only", "burst-100", "--only", "add-vhost-user", "--only", "silence"], ""),
    (["pods", "--only", "pod-add", "--only", "pod-del", "--only", "pod-burst-100"], "fairlead"),
]
# Of the functions that are named, so many must be there. Closures and whole modules change their names with the code.
STILL_THERE = 0.85

libc = ctypes.CDLL(None, use_errno=True)
libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
libc.ptrace.restype = ctypes.c_long
PTRACE_CONT, PTRACE_GETREGS, PTRACE_SETREGS, PTRACE_SEIZE, PTRACE_INTERRUPT = 7, 12, 13, 0x4206, 0x4207
PTRACE_O_TRACECLONE = 8
WALL = 0x40000000  # __WALL: of all threads
BREAKPOINT = b"\xcc"


class Registers(ctypes.Structure):
    """user_regs_struct of x86_64."""

    _fields_ = [
        (name, ctypes.c_ulonglong)
        for name in "r15 r14 r13 r12 rbp rbx r11 r10 r9 r8 rax rcx rdx rsi rdi orig_rax rip cs eflags rsp ss fs_base gs_base ds es fs gs".split()
    ]


def ptrace(request, thread, data=None):
    if libc.ptrace(request, thread, None, data) < 0:
        error = ctypes.get_errno()
        raise OSError(error, f"ptrace({request:#x}) of {thread}: {os.strerror(error)}")


def functions(program):
    """The names of each function, by its address."""
    found = {}
    for line in subprocess.run(["nm", "-S", program], capture_output=True, text=True, check=True).stdout.splitlines():
        words = line.split()
        if len(words) == 4 and words[2] in "tTwW":
            found.setdefault(int(words[0], 16), []).append(words[3])
    return found


def load_address(pid, program):
    with open(f"/proc/{pid}/maps") as maps:
        return next(int(line.split("-")[0], 16) for line in maps if line.rstrip().endswith(program))


class Trace:
    """Breakpoints at all functions of a running process."""

    def __init__(self, pid, program):
        names = functions(program)
        base = load_address(pid, program)
        self.names = {base + address: of_it for address, of_it in names.items()}
        self.pid, self.entered = pid, []
        threads = [int(thread) for thread in os.listdir(f"/proc/{pid}/task")]
        for thread in threads:
            ptrace(PTRACE_SEIZE, thread, PTRACE_O_TRACECLONE)
            ptrace(PTRACE_INTERRUPT, thread)
        for thread in threads:
            os.waitpid(thread, WALL)
        self.memory = open(f"/proc/{pid}/mem", "r+b", buffering=0)
        self.unmet = {address: self.read(address) for address in self.names}
        for address in self.unmet:
            self.write(address, BREAKPOINT)
        for thread in threads:
            ptrace(PTRACE_CONT, thread)

    def read(self, address):
        self.memory.seek(address)
        return self.memory.read(1)

    def write(self, address, byte):
        self.memory.seek(address)
        self.memory.write(byte)

    def follow(self):
        """Until the process has ended."""
        registers = Registers()
        while True:
            try:
                thread, status = os.waitpid(-1, WALL)
            except ChildProcessError:
                return
            if not os.WIFSTOPPED(status):
                if thread == self.pid:
                    return
                continue
            stopped, event, passed_on = os.WSTOPSIG(status), status >> 16, 0
            try:
                if stopped == signal.SIGTRAP and not event:
                    ptrace(PTRACE_GETREGS, thread, ctypes.addressof(registers))
                    address = registers.rip - 1
                    self.meet(address)
                    registers.rip = address
                    ptrace(PTRACE_SETREGS, thread, ctypes.addressof(registers))
                elif not event:
                    passed_on = stopped
                ptrace(PTRACE_CONT, thread, passed_on)
            except ProcessLookupError:
                pass  # It was killed meanwhile.

    def meet(self, address):
        instruction = self.unmet.pop(address, None)
        # Two threads may have met it at once.
        if instruction is not None:
            self.entered.append(address)
            self.write(address, instruction)


def is_ready(path):
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(5)
        connection.connect(path)
        connection.sendall(b"GET /readyz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        return connection.recv(4096).startswith(b"HTTP/1.1 200 ")


def traced(record, program, arguments):
    """Runs the daemon, and writes what it has entered since it was ready."""
    daemon = os.fork()
    if daemon == 0:
        os.execv(program, [program, *arguments])
    signal.signal(signal.SIGTERM, lambda *_: os.kill(daemon, signal.SIGTERM))
    run_dir = arguments[arguments.index("--run-dir") + 1]
    while True:
        try:
            if is_ready(f"{run_dir}/fairlead.sock"):
                break
        except OSError:
            pass
        if os.waitpid(daemon, os.WNOHANG) != (0, 0):
            sys.exit("the daemon has ended before it was ready")
        time.sleep(0.001)
    trace = Trace(daemon, program)
    trace.follow()
    with open(record, "a") as out:
        for address in trace.entered:
            out.writelines(f"{name}\n" for name in trace.names[address])


def pattern(name):
    """A symbol's name with a `*` for the crate's hash, the references to earlier parts, which its length moves, and the numbers of
    impl blocks, closures and compilation units."""
    name = re.sub(r"\.llvm\.\d+", "*", name)
    name = re.sub(r"Cs[0-9a-zA-Z]+_", "Cs*_", name)
    name = re.sub(r"B[0-9a-zA-Z]*_", "B*_", name)
    name = re.sub(r"([MX])s[0-9a-zA-Z]*_", r"\1*_", name)
    return re.sub(r"\*+", "*", name)


def members_of_libc():
    """The object file of each function of the C library."""
    library = subprocess.run(["cc", "-print-file-name=libc.a"], capture_output=True, text=True, check=True).stdout.strip()
    listed = subprocess.run(["nm", "-A", "--defined-only", library], capture_output=True, text=True).stdout
    lines = [line.split() for line in listed.splitlines()]
    return {words[-1]: words[0].split(":")[1] for words in lines if len(words) >= 3}


def make():
    with tempfile.TemporaryDirectory() as made:
        for program in ["fairlead", "fairlead-empty", "fairlead-vswitch"]:
            shutil.copy(DIST / program, made)
        record, wrapper = Path(made, "entered"), Path(made, "fairleadd")
        real = f"'{DIST / 'fairleadd'}'"
        wrapper.write_text(
            f"#!/bin/sh\ncase $1 in run) exec '{HERE}' --trace '{record}' {real} \"$@\" ;; esac\nexec {real} \"$@\"\n"
        )
        wrapper.chmod(0o755)
        members, lines = members_of_libc(), {}
        for cases, part in SUITES:
            suite = [DIST / "fairlead-bench", "--keep-disturbed", "--without", "debian", "--ours", made, *cases]
            subprocess.run(suite, check=True, cwd=DIST.parent)
            for name in record.read_text().split():
                if name.startswith("_R") and part in name:
                    lines[pattern(name)] = True
                elif name in members:
                    lines[members[name]] = True
            record.unlink()
    LIST.write_text("".join(f"{line}\n" for line in lines))
    print(f"{LIST.name}: {len(lines)} lines; build again, then --check")


def check():
    program = DIST / "fairleadd"
    headers = subprocess.run(["readelf", "-SW", program], capture_output=True, text=True, check=True).stdout
    stretch = re.search(rf"{re.escape(SECTION)} +PROGBITS +([0-9a-f]+) +[0-9a-f]+ +([0-9a-f]+)", headers)
    if not stretch:
        sys.exit(f"{program} has no section {SECTION}: was it built by `make build`?")
    begin, size = (int(number, 16) for number in stretch.groups())
    inside = set()
    for address, names in functions(program).items():
        if begin <= address < begin + size:
            inside.update(pattern(name) for name in names)
    named = [line for line in LIST.read_text().split() if line.startswith("_R")]
    there = sum(name in inside for name in named)
    print(f"{there} of {len(named)} functions of {LIST.name} are in {SECTION} of {program.name}, which has {size >> 10} KiB")
    if there < STILL_THERE * len(named):
        sys.exit(f"fewer than {STILL_THERE:.0%}: make the list anew, with daemon/{HERE.name} as root")


if __name__ == "__main__":
    match sys.argv[1:]:
        case []:
            make()
        case ["--check"]:
            check()
        case ["--trace", record, program, *arguments]:
            traced(record, program, arguments)
        case _:
            sys.exit(__doc__)
