"""Namespaces: what Linux lets an ordinary process give up, so that code of others can neither look nor reach around.

`seal` moves the calling process, before it has threads, into namespaces of its own: no network, no processes but its
own children, and nothing to be seen in the folders that hold what it is not to know. Then it gives up every capability,
so that it cannot undo that. Where the system allows no user namespaces, it says so and nothing is changed.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

# <linux/sched.h>, <sys/mount.h>, <linux/prctl.h>, <linux/capability.h>
_NEW_USER, _NEW_MOUNTS, _NEW_PIDS, _NEW_NET, _NEW_IPC = 0x10000000, 0x00020000, 0x20000000, 0x40000000, 0x08000000
_RECURSIVE, _PRIVATE, _READ_ONLY = 0x4000, 0x40000, 0x1
_PR_SET_PDEATHSIG, _PR_SET_NO_NEW_PRIVS, _PR_SET_DUMPABLE, _PR_SET_CHILD_SUBREAPER = 1, 38, 4, 36
_CAPABILITY_VERSION = 0x20080522


def become_subreaper() -> None:
    """Children of children that lost their parent become ours, so that none escapes the process tree."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def be_unreadable() -> None:
    """Nobody but root may read this process's memory or descriptors from now on."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)


def die_with_parent() -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def seal(hidden: Sequence[Path]) -> str:
    """Moves this process into namespaces where `hidden` folders are empty; why not, or an empty string if it is done.

    It returns in a child process. Sealed, that is the first of its own world, and when it ends, the system ends
    whatever it started. In any case its parent, which only waits, adopts whatever the child leaves behind.
    """
    become_subreaper()
    if sys.platform != "linux":
        _go_on_in_child()
        return "this system has no namespaces"
    libc = ctypes.CDLL(None, use_errno=True)
    user, group = os.getuid(), os.getgid()
    if libc.unshare(_NEW_USER | _NEW_MOUNTS | _NEW_PIDS | _NEW_NET | _NEW_IPC):
        why = os.strerror(ctypes.get_errno())
        _go_on_in_child()
        return f"the system allows no user namespaces ({why})"
    try:
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"{user} {user} 1")
        Path("/proc/self/gid_map").write_text(f"{group} {group} 1")
        _mount(libc, None, "/", None, _RECURSIVE | _PRIVATE)
        for folder in hidden:
            _mount(libc, "tmpfs", str(folder), "tmpfs", _READ_ONLY)
    except OSError as error:
        # Half a seal is no seal, and the caller must know; it has lost nothing that it needs.
        _go_on_in_child()
        return f"the system allows no mounts in a namespace ({error.strerror})"
    _go_on_in_child()
    with suppress(OSError):  # refused in many containers; a foreign process is out of reach all the same
        _mount(libc, "proc", "/proc", "proc", 0)
    return _give_up_capabilities(libc)


def _mount(libc: ctypes.CDLL, source: str | None, target: str, kind: str | None, flags: int) -> None:
    encoded = [None if text is None else text.encode() for text in (source, target, kind)]
    if libc.mount(*encoded, ctypes.c_ulong(flags), None):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def _go_on_in_child() -> None:
    """A process enters its new world of processes only by a child; the parent waits and ends as that one does."""
    child = os.fork()
    if child == 0:
        die_with_parent()
        return
    die_with_parent()  # once more: the change of user took it back
    _, status = os.waitpid(child, 0)
    os._exit(os.waitstatus_to_exitcode(status) & 0x7F)


def _give_up_capabilities(libc: ctypes.CDLL) -> str:
    libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION, 0)
    none = (ctypes.c_uint32 * 6)()
    given_up = libc.capset(header, none) == 0
    die_with_parent()  # last, since giving up capabilities takes it back
    if not given_up:
        return f"capabilities could not be given up ({os.strerror(ctypes.get_errno())})"
    return ""
