"""One BLAS thread where more would cost time and change the last digits."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext


def one_thread() -> AbstractContextManager[object]:
    """Return a context in which BLAS uses one thread, if threadpoolctl is installed.

    Matrices of a few hundred rows are too small to be shared out: on a busy machine the threads
    wait for each other up to a hundred times as long as they compute. Without threadpoolctl, which
    scikit-learn installs, setting OMP_NUM_THREADS=1 does the same.

    Returns
    -------
    context manager
        Enters and leaves the limit.
    """
    try:
        from threadpoolctl import threadpool_limits
    except ImportError:
        return nullcontext()
    limits: AbstractContextManager[object] = threadpool_limits(1, user_api="blas")
    return limits
