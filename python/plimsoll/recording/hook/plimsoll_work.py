"""Does what writes a record in threads of its own, so that nothing can interrupt it half-way.

Python runs the program's signal handlers in the main thread, between any two instructions, ours
too. A handler that calls os._exit would wait for a lock that the interrupted instructions hold,
and wait for ever. So the main thread takes no lock: it starts a thread, and waits for that. In the
meantime its handlers run. One may start another thread and wait, raise, or end the process.

Waiting has an end, since the program may hold what the thread needs. Plain Python 3.7.
"""

import signal

# At once: programs replace these (gevent).
from _thread import allocate_lock, get_ident, start_new_thread  # noqa: F401


def hold_signals_back():
    """In a thread of ours: they are for the threads of the program, which may wait for them."""
    known = getattr(signal, "valid_signals", None)  # Python 3.8
    signal.pthread_sigmask(signal.SIG_BLOCK, known() if known else list(signal.Signals))


class _Task:
    def __init__(self, work):
        self._work = work
        self._over = False
        self._free_when_over = allocate_lock()
        self._free_when_over.acquire()

    def run(self, log):
        try:
            self._work()
        except Exception as error:
            log("writing failed: %s: %s" % (type(error).__name__, error))
        self.end()

    def end(self):
        self._over = True
        self._free_when_over.release()

    def wait(self, longest):
        """By one thread. A handler may raise when the lock is taken already: then it is over."""
        if not self._over:
            self._free_when_over.acquire(True, longest)


class Work:
    def __init__(self, log):
        self.log = log
        self._turn = allocate_lock()  # taken in threads of this class alone
        self._ended = False

    def do(self, work, longest):
        """Calls `work` once all that was begun before is done. Returns then, or after `longest`
        seconds. Raises what a signal handler of the program raises meanwhile, and nothing else."""
        self._begin(work).wait(longest)

    def finish(self, work, longest):
        """The same at the end of the process, and the last. Nobody is there to hear what a handler
        raises, so it waits on, until the third time: somebody presses Ctrl-C."""

        def last():
            work()
            self._ended = True  # what was asked for meanwhile would be cut off

        task = self._begin(last)
        for _ in range(3):
            try:
                return task.wait(longest)
            except BaseException:
                continue

    def _begin(self, work):
        task = _Task(work)
        try:
            start_new_thread(self._run, (task,))
        except RuntimeError:
            # No more threads. What is written by two at a time is written whole as well.
            task.run(self.log)
        return task

    def _run(self, task):
        hold_signals_back()
        with self._turn:
            if self._ended:
                task.end()
            else:
                task.run(self.log)
