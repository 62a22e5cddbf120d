"""The console command: `lgp KEY=VALUE ...` is the Hydra application; words are subcommands."""

from __future__ import annotations

import logging
import os
import sys
import traceback
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from lgp.stopping import Stopped, listen

SUBCOMMANDS = ("report", "dashboard", "refine-index", "describe", "jobs")
TABLE_ONLY = "--table-only"
"""With experiment=: make the table of the runs that are there, and run nothing."""


def config_dir() -> str:
    """Folder of the YAML files: inside the wheel, or beside the package in a checkout."""
    inside = Path(__file__).resolve().parent / "configs"
    return str(inside if inside.is_dir() else inside.parent.parent / "configs")


def register() -> None:
    """Make the typed schema known to Hydra: a typo then fails at launch."""
    from hydra.core.config_store import ConfigStore

    from lgp.config import Config

    ConfigStore.instance().store(name="lgp_schema", node=Config)


def to_config(cfg: Any) -> Any:
    """The dataclass of a composed DictConfig, checked across fields (ConfigError)."""
    from omegaconf import OmegaConf

    return OmegaConf.to_object(cfg)


def compose(words: list[str]) -> Any:
    """The checked configuration that `lgp WORDS...` would run.

    Raises:
        ValueError: an unknown key, a value of the wrong type or out of bounds.
    """
    import hydra
    from hydra.errors import HydraException

    register()
    try:
        with hydra.initialize_config_dir(config_dir(), version_base="1.3"):
            return to_config(hydra.compose("config", words))
    except HydraException as error:
        raise ValueError(f"{error}{_cause(error)}") from error


def _job(cfg: Any) -> None:
    from hydra.core.hydra_config import HydraConfig
    from hydra.types import RunMode

    listen()  # here, too: a SLURM launcher's jobs do not come through `main`
    config = to_config(cfg)
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    from lgp.hardware import process_rank
    from lgp.pipeline import finished, run
    from lgp.results import ERROR_FILE
    from lgp.stages import Stages
    from lgp.track import track

    if process_rank()[0] > 0:  # of `accelerate launch`: all embed, the first one does the rest
        Stages(config).embed_all()
        return
    run_dir, log = Path(HydraConfig.get().runtime.output_dir), logging.getLogger(__name__)
    sweep = HydraConfig.get().mode is RunMode.MULTIRUN
    if sweep and finished(config, run_dir):
        log.info("%s is finished; delete it to run it again", run_dir)
        return
    (run_dir / ERROR_FILE).unlink(missing_ok=True)
    try:
        run(config, run_dir, quiet=sweep)
    except Exception:
        if not sweep:
            raise
        # The others go on; the folder tells, and the sweep's table lists it as missing.
        log.exception("this job failed")
        (run_dir / ERROR_FILE).write_text(traceback.format_exc(), encoding="utf-8")
        return
    if config.refine.shard is None and not config.dry_run:
        track(config, run_dir)
    log.info("results in %s", run_dir)


def main(argv: list[str] | None = None) -> int:
    """Run a subcommand or the Hydra application; returns the exit code."""
    listen()
    words = sys.argv[1:] if argv is None else argv
    if words and words[0] in SUBCOMMANDS:
        return _subcommand(words[0], words[1:])
    if words and not words[0].startswith("-") and "=" not in words[0]:
        print(
            f"lgp: {words[0]!r} is neither KEY=VALUE nor a subcommand; subcommands: "
            f"{', '.join(SUBCOMMANDS)}; settings: lgp --help",
            file=sys.stderr,
        )
        return 2
    from lgp.config import ConfigError

    chosen = dict(word.split("=", 1) for word in words if "=" in word)
    try:
        listed = [word for word in words if word != TABLE_ONLY]
        if "experiment" in chosen and all("=" in word for word in listed):
            table = [f"{key}={chosen.get(key, 'paper')}" for key in ("experiment", "scale")]
            if (config := compose(table)).table is not None:
                from lgp.experiment import run_experiment

                launch = _launch if listed == list(words) else (lambda _: 0)
                return run_experiment(config, chosen["experiment"], listed, launch)
        return _launch(words)
    except (ConfigError, ValueError, ModuleNotFoundError, ConnectionError) as error:
        print(f"lgp: {error}", file=sys.stderr)
        return 2


def _subcommand(name: str, words: list[str]) -> int:
    """Run the module of a subcommand; loaded only now, so that each starts with what it needs."""
    more = {"refine-index": (compose,), "describe": (compose,), "jobs": (compose, _launch)}
    module = import_module(f"lgp.{name.replace('-', '_')}")
    return int(module.main(words, *more.get(name, ())))


def _launch(words: list[str]) -> int:
    """The Hydra application on a command line; returns the exit status.

    Raises:
        ModuleNotFoundError: a SLURM launcher without its plugin.
        Stopped: SIGUSR1 asked for it.
    """
    launcher = [word.split("=", 1)[1] for word in words if word.startswith("hydra/launcher=")]
    if launcher and launcher[-1].startswith(("slurm", "submitit")) and not _has_submitit():
        raise ModuleNotFoundError(
            f"hydra/launcher={launcher[-1]} needs a plugin; pip install 'lgp[slurm]'"
        )
    import hydra
    from hydra.core.global_hydra import GlobalHydra
    from hydra.errors import HydraException

    register()
    sys.argv = ["lgp", *("dry_run=true" if word == "--dry-run" else word for word in words)]
    os.environ.setdefault("HYDRA_FULL_ERROR", "1")
    GlobalHydra.instance().clear()  # of the sweep before
    application = hydra.main(version_base="1.3", config_path=config_dir(), config_name="config")
    try:
        application(_job)()
    except Stopped:
        raise
    except SystemExit as stop:  # Hydra's --help and --cfg end this way
        return int(stop.code or 0)
    except HydraException as error:
        print(f"lgp: {error}{_cause(error)}", file=sys.stderr)
        return 2
    except RuntimeError as error:
        if not any(kind.__name__ == "UncompletedJobError" for kind in type(error).__mro__):
            raise
        # Of the SLURM launcher: cancelled, out of memory, node lost.
        last = str(error).strip().splitlines()[-1:]
        print(
            f"lgp: a job ended without a result; the others go on, and the same command runs what "
            f"is missing: {last[0] if last else error!r}",
            file=sys.stderr,
        )
        return 1
    return 0


def _has_submitit() -> bool:
    try:
        return find_spec("hydra_plugins.hydra_submitit_launcher") is not None
    except ModuleNotFoundError:  # no plugin of Hydra at all
        return False


def _cause(error: BaseException) -> str:
    return f" ({error.__cause__})" if error.__cause__ is not None else ""


if __name__ == "__main__":
    sys.exit(main())
