"""The files of the source tree, without what was built or run in it."""
import os
import pathlib

ROOT = pathlib.Path(__file__).resolve().parents[2]
NOT_SOURCE = {"build", "runs", "data", ".git", "__pycache__"}


def files(root, *suffixes):
    """Paths below `root` with one of these suffixes, in order."""
    found = []
    for folder, folders, names in os.walk(root):
        if pathlib.Path(folder) == pathlib.Path(root):
            folders[:] = [f for f in folders if f not in NOT_SOURCE]
        folders[:] = sorted(f for f in folders if f != "__pycache__")
        found += [pathlib.Path(folder, name) for name in sorted(names) if name.endswith(suffixes)]
    return found
