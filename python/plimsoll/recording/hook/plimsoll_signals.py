"""Tells the recorder that a signal came, and then lets it do what it would have done without us.

Python runs a handler only when the main thread comes back from C, and a rank that waits for another
rank never does. So a thread reads the numbers of signals from a pipe, to which the interpreter
writes them at once. The program's own handlers run as ever, and the program does not see ours: the
functions of `signal` answer as if there were none. The same thread reports once a second.
"""

import errno
import fcntl
import functools
import os
import select
import signal
import time

_close = os.close  # the program gets another, which does not close what is ours
# By each of these a scheduler, a launcher or a person ends a job.
_DEADLY = ("SIGTERM", "SIGHUP", "SIGUSR1", "SIGUSR2", "SIGXCPU")


def _instead_of(function, answer):
    """A function that looks like the other."""

    @functools.wraps(function)
    def call(*arguments, **named):
        return answer(*arguments, **named)

    return call


class _Pipe:
    """Each use makes sure of both ends: C code may have closed all files and opened others."""

    def __init__(self, high):
        self.ends = self.read_end, self.write_end = tuple(map(high, os.pipe()))
        self._begin()

    def _begin(self):
        os.set_blocking(self.write_end, False)
        self._which = _what_is(self.read_end)

    def renew(self):
        """Under the same numbers: only the main thread can tell the interpreter another one."""
        self.close()
        for end, number in zip(os.pipe(), self.ends):
            again = fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, number)
            _close(end)
            if again != number:
                _close(again)
        if _what_is(self.read_end) != _what_is(self.write_end):
            raise OSError("a file of the program has its number")
        self._begin()

    def ours(self):
        """The ends that are still open."""
        return [end for end in self.ends if _what_is(end) == self._which]

    def is_whole(self):
        return len(self.ours()) == 2

    def wait(self, milliseconds):
        """What came, or nothing."""
        waiting = select.poll()  # select() is for the first 1,024 files alone
        waiting.register(self.read_end, select.POLLIN)
        came = waiting.poll(milliseconds)
        if not came or not self.is_whole():
            return b""
        return os.read(self.read_end, 64)

    def close(self):
        for end in self.ours():
            _close(end)


def _what_is(file):
    try:
        found = os.fstat(file)
        return found.st_dev, found.st_ino
    except OSError:
        return None


class Signals:
    """`told(name, deadly)` is called with a signal's name, and whether it will end the process.
    `report()` is called about once a second."""

    def __init__(self, told, report, run):
        self.told = told
        self.report = report
        self.log = run.log
        self.high = run.load("plimsoll_files").high
        self.work = run.load("plimsoll_work")
        self.thread = self.work.get_ident
        self.pid = os.getpid()  # None once signals were let go
        self.names = {int(getattr(signal, name)): name for name in _DEADLY + ("SIGINT",)}
        # The kernel holds back from process 1 what would end it by default.
        self.deadly = {getattr(signal, name) for name in _DEADLY if self.pid != 1}
        self.handler = self.on_signal
        # Those of the interpreter: the program's are replaced.
        self.handler_of = signal.getsignal
        self.handle = signal.signal
        self.wake_by = signal.set_wakeup_fd
        self.masks = {}  # of the threads that are forking

    def mine(self):
        return self.pid == os.getpid()

    def watch(self):
        import ctypes

        self.ctypes = ctypes
        self.pipe = _Pipe(self.high)
        try:
            others = self.wake_by(self.pipe.write_end, warn_on_full_buffer=False)
        except ValueError:
            self.log("CUDA began outside of the main thread: signals are not watched")
        else:
            self.listen(others)
        # Not by `threading`, where the program would count it among its own.
        self.work.start_new_thread(self.read, ())

    def listen(self, others):
        if others != -1:
            self.wake_by(others)
        for number in self.deadly:
            # A handler of the program stays; so does an ignored signal (nohup).
            if self.handler_of(number) == signal.SIG_DFL:
                self.handle(number, self.handler)
        self.hide()
        os.register_at_fork(
            before=self.before_fork,
            after_in_parent=self.after_fork,
            after_in_child=self.in_forked_child,
        )

    # What the program sees.

    def hide(self):
        """Frameworks install handlers only where they see none, and call those that they see."""
        signal.getsignal = _instead_of(self.handler_of, self.seen_handler)
        signal.signal = _instead_of(self.handle, self.set_handler)
        signal.set_wakeup_fd = _instead_of(self.wake_by, self.set_wakeup)
        for name, ours in (("close", self.close), ("closerange", self.closerange)):
            pythons = getattr(os, name)
            setattr(os, name, _instead_of(pythons, functools.partial(ours, pythons)))

    def seen_handler(self, *arguments, **named):
        handler = self.handler_of(*arguments, **named)
        return signal.SIG_DFL if handler is self.handler else handler

    def set_handler(self, *arguments, **named):
        before = self.handle(*arguments, **named)
        number = arguments[0] if arguments else named["signalnum"]
        if self.mine() and number in self.deadly and self.handler_of(number) == signal.SIG_DFL:
            self.handle(number, self.handler)
        return signal.SIG_DFL if before is self.handler else before

    def set_wakeup(self, *arguments, **named):
        before = self.wake_by(*arguments, **named)
        if self.mine() and arguments[0] == -1 and self.pipe.is_whole():
            self.wake_by(self.pipe.write_end, warn_on_full_buffer=False)
        return -1 if before == self.pipe.write_end else before

    def close(self, close, *arguments, **named):
        """Files of ours are not there: the interpreter would complain at the next signal."""
        number = arguments[0] if arguments else named.get("fd")
        if number in self.pipe.ends and self.mine() and number in self.pipe.ours():
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        close(*arguments, **named)

    def closerange(self, closerange, low, high):
        if self.mine():
            for number in self.pipe.ours():
                if low <= number < high:
                    closerange(low, number)
                    low = number + 1
        closerange(low, high)

    # When one comes.

    def on_signal(self, number, _):
        """In the main thread, at once unless that is in C."""
        if self.handler_of(number) is not self.handler:
            return  # called by the handler that replaced it; the default one cannot be called
        if self.mine():
            self.told(self.names[number], True)
        self.handle(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [number])
        os.kill(os.getpid(), number)
        while True:
            signal.pause()  # another thread may be the one that gets it

    def read(self):
        self.work.hold_signals_back()
        while self.mine():
            try:
                self.take_what_comes()
            except OSError:
                time.sleep(0.05)  # it was closed just now, or there are no more files

    def take_what_comes(self):
        if not self.pipe.is_whole():
            self.pipe.renew()
        numbers = self.pipe.wait(1000)
        for number in numbers:
            if number in self.names and self.mine():
                self.take(number)
        if not numbers and self.mine() and self.pipe.is_whole():
            self.report()

    def take(self, number):
        # Deadly where no handler but ours is there; otherwise the program decides what follows.
        deadly = self.handler_of(number) is self.handler
        self.told(self.names[number], deadly)
        if deadly and self.mine():
            # Python's own signal() is for the main thread alone.
            self.ctypes.CDLL(None).signal(number, None)
            os.kill(os.getpid(), number)

    def let_go(self):
        """From the main thread: signals do again what they did before."""
        self.pid = None
        others = self.wake_by(-1)
        if others not in (-1, self.pipe.write_end):
            self.wake_by(others)
        for number in self.deadly:
            if self.handler_of(number) is self.handler:
                self.handle(number, signal.SIG_DFL)

    # A forked child cannot use CUDA: there everything is as if this hook were not. A signal that
    # comes while it is being made waits, or it would be lost, or told to the parent's thread.

    def before_fork(self):
        if self.mine():
            mask = signal.pthread_sigmask(signal.SIG_BLOCK, self.names)
            self.masks[self.thread()] = mask

    def after_fork(self):
        mask = self.masks.pop(self.thread(), None)
        if mask is not None:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)

    def in_forked_child(self):
        if self.thread() not in self.masks:
            return
        self.let_go()
        self.pipe.close()
        self.after_fork()
