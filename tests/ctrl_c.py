"""Ctrl-C at each place where Python may really raise a KeyboardInterrupt, one after the other."""

from __future__ import annotations

import asyncio
import ctypes
import pkgutil
import signal
import sys
import threading
from collections.abc import Callable, Collection
from types import FrameType
from typing import Any

import pytest

from kafkasafe import _producing

PRODUCER = {
    "kafkasafe.producer",
    *(f"kafkasafe._producing.{each.name}" for each in pkgutil.iter_modules(_producing.__path__)),
}
"""The modules of `SafeProducer`."""

_Trace = ctypes.PYFUNCTYPE(None, ctypes.py_object, ctypes.py_object, ctypes.py_object)
"""A trace function that is not written in Python, or the interrupt would come in the trace function itself."""
_press = _Trace(("PyErr_SetInterrupt", ctypes.pythonapi))
_do_nothing = _Trace(("Py_IsInitialized", ctypes.pythonapi))


class CtrlC:
    """A context in which Ctrl-C is pressed before this thread's bytecode number `step` of some modules.

    Python raises then where it next looks for signals: mostly after a call, so never between `with lock:` and its
    body. (An exception that a trace function raises comes where none can, say in the middle of leaving that body.)

    Args:
        step: Number of the bytecode.
        modules: Names of the modules whose bytecodes count.
        handler: Called by the signal handler, instead of raising a KeyboardInterrupt.

    Attributes:
        pressed: There were so many bytecodes.
        place: Where it was raised.
    """

    def __init__(
        self, step: int, modules: Collection[str], handler: Callable[[], object] | None = None
    ) -> None:
        self.pressed = False
        self.place = ""
        self._left = step
        self._modules = modules
        self._task = _task()
        self._handler = handler

    def __enter__(self) -> CtrlC:
        if threading.current_thread() is not threading.main_thread():
            pytest.skip("Signals come to the main thread, and the tests run on another one")
        self._before = signal.signal(signal.SIGINT, self._raise)
        sys.settrace(self._call)
        return self

    def __exit__(self, *_: object) -> None:
        sys.settrace(None)
        signal.signal(signal.SIGINT, self._before)

    def _raise(self, _: int, frame: FrameType | None) -> None:
        # Once, however often it is pressed by then; not where another task runs, or the loop itself, which forgets a task
        # that is interrupted in `call_soon`.
        if not self.place and frame is not None and _task() is self._task and self._is_within(frame):
            sys.settrace(None)
            self.place = f"{frame.f_code.co_qualname}:{frame.f_lineno}"
            if self._handler is None:
                raise KeyboardInterrupt
            self._handler()

    def _is_within(self, frame: FrameType | None) -> bool:
        if frame is not None and frame.f_code.co_filename == __file__:
            return False  # noticed by the trace function, which presses again
        while frame is not None and frame.f_globals.get("__name__") not in self._modules:
            frame = frame.f_back
        return frame is not None

    def _call(self, frame: FrameType, *_: object) -> Any:
        if self.pressed or frame.f_globals.get("__name__") not in self._modules or _task() is not self._task:
            return None
        # Python 3.13 counts the bytecodes of a frame only if the frame has its trace function already.
        frame.f_trace = self._opcode
        frame.f_trace_opcodes = True
        return self._opcode

    def _opcode(self, _: FrameType, event: str, __: object) -> Any:
        if not self.pressed:
            self._left -= event == "opcode"
            if self._left >= 0:
                return self._opcode
            self.pressed = True
            sys.settrace(_do_nothing)  # for what is called: this module would notice it instead
        return self._opcode if self.place else _press


def _task() -> object:
    try:
        return asyncio.current_task()
    except RuntimeError:  # no loop
        return None
