"""Modules and attributes of Unix that other systems lack are used behind a guard only."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from support.source import ROOT, tree_of

UNIX = frozenset(
    {
        "crypt",
        "fcntl",
        "grp",
        "nis",
        "ossaudiodev",
        "posix",
        "pty",
        "pwd",
        "readline",
        "resource",
        "spwd",
        "syslog",
    }
    | {"termios", "tty"}
)
"""Modules of the standard library with "Availability: Unix" in its documentation."""

ATTRIBUTES = {
    "os": "chown chroot fchmod fchown fork forkpty getegid geteuid getgid getgroups getloadavg getpgid "
    "getpgrp getpriority getresuid getsid getuid initgroups killpg lchown major mkfifo mknod nice "
    "openpty pipe2 posix_spawn pread pwrite sched_getaffinity sched_setaffinity sched_yield sendfile "
    "setegid seteuid setgid setpgid setpriority setsid setuid statvfs sync sysconf tcgetpgrp uname "
    "wait wait3 wait4 WIFSIGNALED WTERMSIG",
    "signal": "SIGALRM SIGCHLD SIGCONT SIGHUP SIGKILL SIGPIPE SIGQUIT SIGSTOP SIGTSTP SIGUSR1 SIGUSR2 SIGWINCH "
    "ITIMER_REAL alarm getitimer pause pthread_kill pthread_sigmask setitimer siginterrupt "
    "sigpending sigwait",
    "select": "epoll kqueue poll",
    "socket": "AF_UNIX SO_REUSEPORT socketpair",
    "time": "clock_gettime clock_settime pthread_getcpuclockid tzset",
}
"""Attributes that Windows or macOS lacks, which a module must ask for with `hasattr` before it uses them."""

ASKED_AS = dict.fromkeys(("SIGALRM", "ITIMER_REAL"), "setitimer")
"""Attributes that exist together with another one."""

LINUX_ONLY = ("eval/bench/", "trainers/bench/")
"""Benchmarks, which read memory and processor time from /proc."""


def sources() -> list[Path]:
    rooms = ("envs", "agents", "eval", "trainers", "assets")
    return sorted([*ROOT.glob("*.py"), *(path for room in rooms for path in (ROOT / room).rglob("*.py"))])


def name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def unguarded_imports(node: ast.AST) -> Iterator[str]:
    """Yield the modules that a module imports whenever it is imported, without those behind `try` or `if`."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in child.names)
        elif isinstance(child, ast.ImportFrom) and not child.level:
            yield (child.module or "").partition(".")[0]
        elif not isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.If, ast.Try)):
            yield from unguarded_imports(child)


def test_modules_can_be_imported_without_the_modules_of_unix() -> None:
    needed = {name(path): UNIX & {*unguarded_imports(tree_of(path))} for path in sources()}
    assert {path: modules for path, modules in needed.items() if modules} == {}


def unguarded_attributes(text: str) -> set[str]:
    """Return the attributes of ATTRIBUTES that a module uses without `hasattr` on any line of it."""
    used = {
        (node.value.id, node.attr)
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and node.attr in ATTRIBUTES.get(node.value.id, "").split()
    }
    return {
        f"{module}.{name}"
        for module, name in used
        if f'hasattr({module}, "{ASKED_AS.get(name, name)}")' not in text
    }


def test_attributes_of_unix_are_found_in_an_example() -> None:
    assert unguarded_attributes("import os\nos.killpg(1, 9)") == {"os.killpg"}
    assert unguarded_attributes('import os\nif hasattr(os, "killpg"):\n    os.killpg(1, 9)') == set()
    assert unguarded_attributes("import signal\nprint(signal.SIGALRM)") == {"signal.SIGALRM"}


def test_attributes_of_unix_are_used_behind_hasattr() -> None:
    portable = (path for path in sources() if not name(path).startswith(LINUX_ONLY))
    used = {name(path): unguarded_attributes(path.read_text(encoding="utf-8")) for path in portable}
    assert {path: attributes for path, attributes in used.items() if attributes} == {}


def texts_without_encoding(text: str) -> set[int]:
    """Return the lines that open a text file in the encoding of the system, which is a code page on Windows."""
    lines = set()
    for node in ast.walk(ast.parse(text)):
        if not isinstance(node, ast.Call) or any(word.arg in ("encoding", None) for word in node.keywords):
            continue
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        modes = [value for value in map(literal, [*node.args, *(word.value for word in node.keywords)]) if value]
        lacks_encoding = {
            "read_text": not node.args,
            "write_text": len(node.args) == 1,
            **dict.fromkeys(("open", "fdopen"), any(set(mode) <= set("rwaxt+") for mode in modes)),
        }
        if lacks_encoding.get(name):
            lines.add(node.lineno)
    return lines


def literal(node: ast.expr) -> str:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""


def test_text_files_without_an_encoding_are_found_in_an_example() -> None:
    text = 'a.read_text()\nb.open("w")\nc.open("rb")\nd.open("w", encoding="utf-8")\ne.write_text(t)\nf.open(seed)'
    assert texts_without_encoding(text) == {1, 2, 5}


def test_text_files_are_opened_with_an_encoding() -> None:
    """Windows reads and writes a code page otherwise, in which other systems cannot read the file."""
    portable = (path for path in sources() if not name(path).startswith(LINUX_ONLY))
    found = {name(path): texts_without_encoding(path.read_text(encoding="utf-8")) for path in portable}
    assert {path: lines for path, lines in found.items() if lines} == {}
