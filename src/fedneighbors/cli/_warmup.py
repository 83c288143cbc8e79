"""``fedneighbors warmup``: compile all kernels in advance."""

from fedneighbors.cli._console import echo, progress_bar


def warmup() -> None:
    """Compile every kernel; the compiled code is cached on disk."""
    import time
    from concurrent.futures import ProcessPoolExecutor, as_completed
    from multiprocessing import get_context

    from fedneighbors.methods.fedknn._warmup import warmup as compile_search
    from fedneighbors.methods.fedpnn.algorithm import warmup as compile_clusters
    from fedneighbors.methods.flynn.algorithm import warmup as compile_training
    from fedneighbors.privacy.noise._samplers import warmup as compile_noise
    from fedneighbors.reports._formatting import format_seconds

    started = time.perf_counter()
    groups = (compile_search, compile_training, compile_clusters, compile_noise)
    # processes, not threads: Numba compiles in one thread at a time
    with ProcessPoolExecutor(mp_context=get_context("spawn")) as pool, progress_bar() as progress:
        progress(0, len(groups), "compiling kernels")
        tasks = [pool.submit(group) for group in groups]
        for n_done, task in enumerate(as_completed(tasks), start=1):
            task.result()
            progress(n_done, len(groups), "compiling kernels")
    echo(f"all kernels are compiled: {format_seconds(time.perf_counter() - started)}", "green")
