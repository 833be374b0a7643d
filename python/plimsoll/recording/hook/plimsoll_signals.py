"""Tells the recorder of `plimsoll run` that a signal came, and lets it do what it would have done.

Python runs a handler only when the main thread comes back from C, and a rank that waits for another
never does. So a thread reads the numbers of signals from a pipe, to which the interpreter writes
them at once. The program's own handlers are called as ever. The same thread reports once a second.
"""

import functools
import os
import select
import signal
import threading

# By each of these a scheduler, a launcher or a person ends a job.
_DEADLY = ("SIGTERM", "SIGHUP", "SIGUSR1", "SIGUSR2", "SIGXCPU")


class Signals:
    def __init__(self, told, report, log):
        self.told = told  # called with a signal's name, and whether it will end the process
        self.report = report  # called about once a second
        self.log = log
        self.pid = os.getpid()
        self.handler_of = signal.getsignal
        self.ours = []
        self.mask = None  # while a fork holds signals back
        self.names = {int(getattr(signal, name)): name for name in _DEADLY + ("SIGINT",)}

    def watch(self):
        read_end, self.pipe = os.pipe()
        os.set_blocking(self.pipe, False)
        if threading.current_thread() is threading.main_thread():
            self.listen()
        else:
            self.log("CUDA began outside of the main thread: signals are not watched")
        threading.Thread(target=self.read, args=(read_end,), name="plimsoll", daemon=True).start()

    def listen(self):
        taken = signal.set_wakeup_fd(self.pipe, warn_on_full_buffer=False)
        if taken != -1:
            signal.set_wakeup_fd(taken)  # somebody else's
        for name in _DEADLY:
            number = getattr(signal, name)
            # A handler of the program stays; so does an ignored signal (nohup).
            if self.handler_of(number) == signal.SIG_DFL:
                signal.signal(number, self.on_signal)
                self.ours.append(number)
        self.hide_handlers()
        os.register_at_fork(
            before=self.before_fork,
            after_in_parent=self.after_fork,
            after_in_child=self.in_forked_child,
        )

    def hide_handlers(self):
        """Frameworks install theirs only where they see none; ours must not count."""
        seen = self.handler_of

        @functools.wraps(seen)
        def getsignal(signalnum):
            handler = seen(signalnum)
            return signal.SIG_DFL if handler == self.on_signal else handler

        signal.getsignal = getsignal

    def on_signal(self, number, _):
        # Where the interpreter does not write to our pipe.
        try:
            os.write(self.pipe, bytes([number]))
        except OSError:
            pass  # it is full, so the thread will look

    def read(self, read_end):
        waiting = select.poll()  # select() is for the first 1,024 files alone
        waiting.register(read_end, select.POLLIN)
        while True:
            if not waiting.poll(1000):
                self.report()
                continue
            for number in os.read(read_end, 64):
                if number in self.names and self.pid == os.getpid():
                    self.take(number)

    def take(self, number):
        # Deadly where no handler but ours is there; otherwise the program decides what follows.
        deadly = self.handler_of(number) == self.on_signal
        self.told(self.names[number], deadly)
        if deadly:
            # Python's own signal() is for the main thread alone.
            import ctypes

            ctypes.CDLL(None).signal(number, None)
            os.kill(os.getpid(), number)

    def let_go(self):
        """From the main thread: signals do again what they did before."""
        for number in self.ours:
            if self.handler_of(number) == self.on_signal:
                signal.signal(number, signal.SIG_DFL)

    # A forked child cannot use CUDA: there everything is as if this hook were not. A signal that
    # comes while it is being made waits, or it would be lost, or told to the parent's thread.

    def before_fork(self):
        if self.pid == os.getpid():
            self.mask = signal.pthread_sigmask(signal.SIG_BLOCK, self.names)

    def after_fork(self):
        mask, self.mask = self.mask, None
        if mask is not None:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)

    def in_forked_child(self):
        if self.mask is None:
            return
        wakes = signal.set_wakeup_fd(-1)
        if wakes not in (-1, self.pipe):
            signal.set_wakeup_fd(wakes)  # somebody else's
        self.let_go()
        self.after_fork()
