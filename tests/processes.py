"""Processes that start quickly, as their packages are imported once for all of them."""

import multiprocessing
import os
import runpy
import sys

PACKAGES = [
    "fedneighbors.cli._main",
    "fedneighbors.runs._fedpnn",
    "fedneighbors.runs._flynn",
    "fedneighbors.runs._knnper",
    "fedneighbors.reports._html",
    "matplotlib.pyplot",
    "pandas",
    "torch",
]
LIMIT_S = 600

if sys.platform == "linux":
    _context = multiprocessing.get_context("forkserver")
    _context.set_forkserver_preload(PACKAGES)
else:  # libraries of macOS are not made for fork
    _context = multiprocessing.get_context("spawn")


def start(target, *args, folder):
    """Start a function in a folder; what it prints is added to the file log."""
    process = _context.Process(target=_call, args=(target, args, folder))
    process.start()
    return process


def finish(process):
    """Wait for a process, and kill it after a timeout; return its exit status."""
    process.join(LIMIT_S)
    process.kill()
    process.join()
    return process.exitcode


def start_blocks(page, *, folder):
    """Start a process for the Python blocks of a page; return it and a function that runs one."""
    ours, theirs = _context.Pipe()
    process = start(_run_blocks, theirs, page, folder=folder)
    theirs.close()

    def run_block(block):
        ours.send(block)
        try:
            return ours.poll(LIMIT_S) and ours.recv()
        except EOFError:  # the block raised an error
            return False

    return process, run_block


def run_command(words):
    """Run a command line of fedneighbors."""
    from fedneighbors.cli._main import main

    sys.argv = words
    main()


def draw_example(path):
    """Run an example and save its pictures."""
    import matplotlib.pyplot as plt

    plt.switch_backend("Agg")
    runpy.run_path(path, run_name="__main__")
    for number in plt.get_fignums():
        plt.figure(number).savefig(f"{number}.png")


def _call(target, args, folder):
    os.chdir(folder)
    log = os.open("log", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    for output in (1, 2):
        os.dup2(log, output)
    target(*args)


def _run_blocks(connection, page):
    names = {"__name__": "page"}
    while block := connection.recv():
        exec(compile(block, page, "exec"), names)  # a block may build on those above it
        connection.send(True)
