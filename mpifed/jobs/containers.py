"""The words by which a process starts in a container."""

from __future__ import annotations

from mpifed.jobs.options import JobOptions


def words(options: JobOptions) -> list[str]:
    """The words before the interpreter; none where srun starts the container itself."""
    if options.image is None or options.pyxis:
        return []
    devices = ["--nv"] if options.gpus_per_node else []
    more = [str(word) for word in options.container_options or ()]
    return [options.container, "exec", *devices, *more, options.image]


def srun_words(options: JobOptions) -> list[str]:
    """The words of srun that start a container by pyxis, if it is to."""
    if options.image is None or not options.pyxis:
        return []
    more = [str(word) for word in options.container_options or ()]
    return [f"--container-image={options.image}", *more]


def once(options: JobOptions) -> list[str]:
    """The words before the interpreter of a single process."""
    own = srun_words(options)
    return ["srun", "--ntasks=1", *own] if own else words(options)
