"""When data cannot be loaded: one explanation instead of whatever the loader happens to raise."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from nearsight.images.unreadable import TooManyBadImages
from nearsight.runs.exits import DataLoadingError


@contextmanager
def explained_loading() -> Iterator[None]:
    """Around code that reads from a loader.

    A dead worker shows as a RuntimeError of the loader, or as a broken connection when it died while handing over a
    batch. torch also installs a signal handler that raises wherever the program happens to be, even inside a lock
    that is then never released; the loader notices by itself within seconds, so the handler is taken away.
    """
    try:
        yield
    except TooManyBadImages as error:
        raise DataLoadingError(str(error)) from error
    except (RuntimeError, ConnectionError, EOFError) as error:
        if isinstance(error, RuntimeError) and "DataLoader worker" not in str(error):
            raise
        raise DataLoadingError(
            f"a data-loading process died ({' '.join(str(error).split()) or type(error).__name__}); it may have run "
            "out of memory or of space in /dev/shm: try fewer --workers, then resume"
        ) from error
    finally:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
