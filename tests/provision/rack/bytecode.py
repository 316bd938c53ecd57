"""A module that each machine's Python imports when it starts. Ansible sends modules with all that they import, as sources in an archive,
and Python compiles these anew in each task: half of what a task costs. Here a source is compiled once."""

import _imp
import marshal
import os
import zipimport
from typing import Any


def keep(directory: str) -> None:
    """Code of archives is kept in a directory, under the hash of its source."""
    compiler = zipimport._compile_source  # type: ignore[attr-defined]

    def compile_once(name: str, source: bytes) -> Any:
        path = f"{directory}/{_imp.source_hash(0, source).hex()}"
        try:
            with open(path, "rb") as file:
                return marshal.load(file)
        except (OSError, ValueError, EOFError):
            code = compiler(name, source)
        try:
            with open(f"{path}.{os.uname().nodename}.{os.getpid()}", "wb") as new:
                marshal.dump(code, new)
            os.replace(new.name, path)
        except OSError:
            pass  # of a user, who may not write there
        return code

    zipimport._compile_source = compile_once  # type: ignore[attr-defined]
