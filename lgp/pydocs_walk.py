"""Import packages, walk their public modules, and write every public docstring to a file.

A script for the child process of `pydocs.py`: `pydocs_walk.py ANSWER SYS_PATH PACKAGE ...`. It runs
apart so that imports of arbitrary packages touch nothing, and needs the standard library only.
Private names, test modules and properties are left out.
"""

import contextlib
import importlib
import inspect
import json
import pkgutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

# `distutils` is numpy's build tooling, gone under Python 3.12: the corpus must not depend on that.
SKIPPED_MODULES = frozenset({"tests", "test", "testing", "conftest", "setup", "distutils"})


def walk(packages: Sequence[str]) -> dict[str, Any]:
    """Collect the docstrings of all public functions and classes of `packages`.

    Returns:
        documents: [canonical name, docstring, is it no class?], one for each documented object; the
            canonical name is the shortest public path (fewest parts, then characters, then
            alphabetical).
        aliases: {any public path: canonical name}, for documented objects only.
        n_modules, failed_modules: how many modules were read, and names of those that could not
            be imported.
    """
    roots = frozenset(package.partition(".")[0] for package in packages)
    modules: dict[str, ModuleType] = {}
    failed: list[str] = []
    for package in packages:
        _import_tree(package, modules, failed)
    owned, inherited = _collect(modules, roots)
    # Objects are told apart by id: `owned` and `inherited` keep all of them alive meanwhile.
    names: dict[int, str] = {}
    documents: list[tuple[str, str, bool]] = []
    for path in sorted(owned, key=lambda path: (path.count("."), len(path), path)):
        item = owned[path]
        docstring = getattr(item, "__doc__", None)
        if id(item) not in names and isinstance(docstring, str) and docstring.strip():
            names[id(item)] = path
            documents.append((path, docstring, not inspect.isclass(item)))
    return {
        "documents": documents,
        "aliases": {
            path: names[id(item)] for path, item in (inherited | owned).items() if id(item) in names
        },
        "n_modules": len(modules),
        "failed_modules": sorted(failed),
    }


def _import_tree(name: str, modules: dict[str, ModuleType], failed: list[str]) -> None:
    if name in modules or name in failed:
        return
    try:
        module = importlib.import_module(name)
    except KeyboardInterrupt:
        raise
    # Anything may be raised by a module that was not meant to be imported here: SystemExit by
    # scripts, pytest's own BaseException by test helpers. They are counted, not hidden.
    except BaseException:
        failed.append(name)
        return
    modules[name] = module
    for info in sorted(pkgutil.iter_modules(getattr(module, "__path__", ())), key=lambda i: i.name):
        if _is_public(info.name) and info.name not in SKIPPED_MODULES:
            _import_tree(f"{name}.{info.name}", modules, failed)


def _is_public(name: str) -> bool:
    return not name.startswith(("_", "test_"))


def _collect(
    modules: Mapping[str, ModuleType], roots: frozenset[str]
) -> tuple[dict[str, object], dict[str, object]]:
    """All public paths: (owned {path: object}, inherited {path: method of a public base class})."""
    owned: dict[str, object] = {
        f"{module_name}.{name}": item
        for module_name, module in modules.items()
        for name, item in _public_members(module)
        if callable(item) and _home(item) in roots
    }
    classes = {path: item for path, item in owned.items() if isinstance(item, type)}
    public = {id(item) for item in classes.values()}
    inherited: dict[str, object] = {}
    for path, item in classes.items():
        for base in reversed(inspect.getmro(item)):
            if _home(base) not in roots:
                continue
            # Methods of a private base have no public path but through its subclasses.
            table = owned if base is item or id(base) not in public else inherited
            for name, member in vars(base).items():
                function: object = getattr(member, "__func__", member)
                if _is_public(name) and inspect.isroutine(function):
                    table[f"{path}.{name}"] = function
    return owned, inherited


def _public_members(module: ModuleType) -> Iterator[tuple[str, object]]:
    listed = getattr(module, "__all__", None)
    for name in sorted(set(vars(module) if listed is None else listed)):
        if not _is_public(name) or name == "test":
            continue
        # A name in __all__ may be missing, or refuse by a deprecation error of the module.
        with contextlib.suppress(Exception):
            yield name, getattr(module, name)


def _home(item: object) -> str:
    """Name of the package an object comes from; an instance without a module has its type's."""
    module = getattr(item, "__module__", None)
    if not isinstance(module, str):
        module = type(item).__module__
    return module.partition(".")[0]


if __name__ == "__main__":
    answer, path, *wanted = sys.argv[1:]
    sys.path[:] = json.loads(path)
    Path(answer).write_text(json.dumps(walk(wanted)), encoding="utf-8")
