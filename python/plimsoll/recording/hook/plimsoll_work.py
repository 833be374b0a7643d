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


class Work:
    def __init__(self, log):
        self.log = log
        self._turn = allocate_lock()  # taken in threads of this class alone

    def do(self, work, longest):
        """Calls `work` once all that was begun before is done. Returns then, or after `longest`
        seconds. Raises what a signal handler of the program raises meanwhile, and nothing else."""
        done = allocate_lock()
        done.acquire()
        try:
            start_new_thread(self._run, (work, done))
        except RuntimeError:
            # No more threads. What is written by two at a time is written whole as well.
            self._call(work)
            return
        done.acquire(True, longest)

    def _run(self, work, done):
        hold_signals_back()
        with self._turn:
            self._call(work)
        done.release()

    def _call(self, work):
        try:
            work()
        except Exception as error:
            self.log("writing failed: %s: %s" % (type(error).__name__, error))
