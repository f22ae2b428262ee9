"""Command lines that start a process in a container."""

from __future__ import annotations

from mpifed.jobs.options import JobOptions


def words(options: JobOptions) -> list[str]:
    """Return the words before the interpreter; none where srun starts the container itself."""
    if options.image is None or options.pyxis:
        return []
    devices = ["--nv"] if options.gpus_per_node else []
    more = [str(word) for word in options.container_options or ()]
    return [options.container, "exec", *devices, *more, options.image]


def srun_words(options: JobOptions) -> list[str]:
    """Return the options of srun that start a container with pyxis; none without pyxis."""
    if options.image is None or not options.pyxis:
        return []
    more = [str(word) for word in options.container_options or ()]
    return [f"--container-image={options.image}", *more]


def once(options: JobOptions) -> list[str]:
    """Return the words before the interpreter of a single process, as for a report."""
    own = srun_words(options)
    return ["srun", "--ntasks=1", *own] if own else words(options)
