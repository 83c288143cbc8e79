"""``fedneighbors warmup``: compiles all kernels once, so that no run has to wait for it."""


def warmup() -> None:
    """Compile every kernel once; the results are kept on disk."""
    import time

    from fedneighbors.cli._console import progress_bar, say
    from fedneighbors.methods.fedknn._warmup import warmup as compile_search
    from fedneighbors.methods.fedpnn.algorithm import warmup as compile_clusters
    from fedneighbors.methods.flynn.algorithm import warmup as compile_training
    from fedneighbors.privacy.noise._samplers import warmup as compile_noise
    from fedneighbors.reports._formatting import span

    started = time.perf_counter()
    with progress_bar() as progress:
        progress(0, 1, "compiling kernels")
        compile_training()
        compile_search()
        compile_clusters()
        compile_noise()
    say(f"all kernels are compiled: {span(time.perf_counter() - started)}", "green")
