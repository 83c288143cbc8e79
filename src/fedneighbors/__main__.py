"""``python -m fedneighbors``: the command line where its script is not on the path."""

from fedneighbors.cli._main import main

if __name__ == "__main__":
    main()
