"""What a process on Windows lacks, taken from a process on Linux. It is imported before everything else.

Modules and functions of POSIX are hidden from the package; libraries use those of Linux. A file that this process has
open, or mapped, can be neither removed, renamed nor replaced by any, and no folder can be opened.
"""

import builtins
import mmap
import os
import shutil
import types

MODULES = ("fcntl", "grp", "pwd", "resource", "termios")
MAPPING = ("MAP_PRIVATE", "MAP_ANONYMOUS", "MAP_SHARED", "MAP_NORESERVE", "PROT_READ", "PROT_WRITE")
FUNCTIONS = ("sched_getaffinity", "getuid", "geteuid", "pread", "pwrite", "fchmod", "mkfifo", "fork", "O_NOFOLLOW")


def hide():
    """Hide what Windows lacks from modules that are imported later."""
    shutil._use_fd_functions = False
    for name in ("unlink", "remove", "rename", "replace"):
        setattr(os, name, _refusing_open_files(getattr(os, name)))
    os.open = _refusing_folders(os.open)
    builtins.__import__ = _hiding(builtins.__import__)


def _hiding(imports):
    """Return a function of imports with which the package has what Windows has."""
    reduced = {"os": _without(os, FUNCTIONS), "mmap": _without(mmap, MAPPING)}

    def imported(name, space=None, *arguments, **options):
        if not (space or {}).get("__name__", "").startswith("dpscale"):
            return imports(name, space, *arguments, **options)
        if name in MODULES:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        return reduced[name] if name in reduced else imports(name, space, *arguments, **options)

    return imported


def _without(module, names):
    found = types.ModuleType(module.__name__)
    vars(found).update({name: value for name, value in vars(module).items() if name not in names})
    return found


def _refusing_open_files(change):
    def changed(*paths, **options):
        for path in paths[:2]:
            real = os.path.realpath(os.fsdecode(path))
            if os.path.isfile(real) and real in _opened():
                raise PermissionError(13, "The process cannot access the file because it is open", real)
        return change(*paths, **options)

    return changed


def _opened():
    """Return the files that this process has open or mapped."""
    found = set()
    for descriptor in os.listdir("/proc/self/fd"):
        try:
            found.add(os.readlink(f"/proc/self/fd/{descriptor}"))
        except FileNotFoundError:  # that of the listing
            continue
    with open("/proc/self/maps") as maps:
        found |= {line.rstrip("\n").partition("/")[2] and "/" + line.rstrip("\n").partition("/")[2] for line in maps}
    return found


def _refusing_folders(opens):
    def opened(path, flags, *arguments, **options):
        if os.path.isdir(path) and flags & os.O_TMPFILE != os.O_TMPFILE:
            raise PermissionError(13, "Permission denied", path)
        return opens(path, flags, *arguments, **options)

    return opened
