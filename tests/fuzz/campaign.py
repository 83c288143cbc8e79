"""Read mutated files and requests; report untyped errors, hangs and large allocations.

``python -m tests.fuzz.campaign --inputs 100000 --seed 1`` prints a JSON object.
"""

import argparse
import json
import logging
import random
import resource
import signal
import sys
import tempfile
import traceback
import warnings
from collections import Counter
from pathlib import Path

from fedneighbors.errors import FedneighborsError
from fedneighbors.methods.fedknn import _provider as fedknn
from fedneighbors.methods.flynn import protocol as flynn
from fedneighbors.methods.knnper import _client as knnper
from fedneighbors.tabular import _schema as schema
from tests.fuzz.corpus import targets

MAX_BYTES = 256 << 20
MAX_CELLS = 1 << 20
MAX_CPU_S = 5
MAX_FAULTS = 300
WEIGHTS = {"requests": 55, "models": 8, "tables": 8, "schemas": 9, "ledgers": 0.5, "entries": 0.5}
WEIGHTS |= {"objects": 8, "arrays": 4, "texts": 4, "keys": 1.5, "records": 1.5, "evidence": 2}


class Hang(BaseException):
    """An input took more CPU time than allowed."""


def _stop(*_):
    raise Hang


def campaign(*, inputs, seed, names, brief, folder):
    """Read mutated inputs; return counts of inputs and a list of faults.

    A process that is told to end returns what it found so far.
    """
    chosen = targets(folder, names, brief=brief)
    for module in (schema, flynn, knnper, fedknn):  # each imports the limit by its value
        module.MAX_CELLS = MAX_CELLS  # requests may otherwise ask for arrays of 2 GiB
    end_signals = []
    signal.signal(signal.SIGTERM, lambda *_: end_signals.append(True))
    rng = random.Random(seed)
    _limit_memory()
    signal.signal(signal.SIGPROF, _stop)
    found = {"inputs": Counter(), "refused": Counter(), "failed": Counter(), "faults": []}
    weights = [WEIGHTS[target.name] for target in chosen]
    for number in range(inputs):
        target = rng.choices(chosen, weights)[0]
        item = target.change(rng.choice(target.inputs), rng)
        fault = _read(target, item, Path(folder) / "input", found)
        if fault:
            found["faults"].append({"target": target.name, "number": number, "fault": fault})
        if len(found["faults"]) >= MAX_FAULTS or end_signals:
            break
    return found


def _limit_memory():
    """Let this process allocate 256 MB more than it has."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + MAX_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


def _read(target, item, path, found):
    """Read one input; return a description of its fault, or an empty text."""
    found["inputs"][target.name] += 1
    signal.setitimer(signal.ITIMER_PROF, MAX_CPU_S)
    try:
        target.read(item, path)
    except target.error as error:
        found["refused"][target.name] += 1
        if "no memory" in str(error) or isinstance(error.__cause__, MemoryError):
            return f"memory: {error}"
    except MemoryError:
        return "memory: " + _place()
    except Hang:
        return "hang: " + _place()
    except FedneighborsError as error:
        if target.name != "requests":
            return f"{type(error).__name__}: {_place()}"
    except Exception as error:
        if target.name == "requests" and _is_answer():
            found["failed"][f"{type(error).__name__} {_place()}"] += 1
            return ""
        return f"{type(error).__name__}: {str(error)[:200]} {_place()}"
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
    return ""


def _is_answer():
    """Return whether an error was raised by a party, whose failures all travel as one code."""
    return any(frame.name == "serve" for frame in traceback.extract_tb(sys.exc_info()[2]))


def _place():
    frames = traceback.extract_tb(sys.exc_info()[2])
    own = [f for f in frames if "/fedneighbors/" in f.filename] or frames
    return " < ".join(f"{Path(f.filename).name}:{f.lineno} {f.name}" for f in own[:-5:-1])


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--inputs", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--targets", nargs="*")
    parser.add_argument("--brief", action="store_true", help="Models and requests without torch.")
    arguments = parser.parse_args()
    logging.disable()
    warnings.simplefilter("ignore")
    with tempfile.TemporaryDirectory() as folder:
        found = campaign(
            inputs=arguments.inputs,
            seed=arguments.seed,
            names=arguments.targets,
            brief=arguments.brief,
            folder=folder,
        )
    print(json.dumps(found))


if __name__ == "__main__":
    main()
