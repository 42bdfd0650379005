"""`python -m trainer.launch_hyperpod [options] -m trainer.train RECIPE …`: ranks under HyperPod's agent.

The options are `hyperpodrun`'s, which are torchrun's and some more. What differs is the default: logs are
kept where the Training Operator's rules can read them; ranks get SIGTERM and time to save, not SIGKILL.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path

from trainer.errors import TrainerError
from trainer.resilience import Exit, exit_code, leave

GRACE_S = 300  # for the last checkpoint; the pod's terminationGracePeriodSeconds must be longer


def defaults(arguments: list[str]) -> list[str]:
    """`arguments` behind this launcher's defaults; of a repeated option, argparse takes the last."""
    logs = f"--log-dir={Path(tempfile.gettempdir()) / 'hyperpod'}"
    return [logs, "--tee=3", "--shutdown-signal=SIGTERM", f"--shutdown-timeout={GRACE_S}", *arguments]


def nodes(arguments: list[str]) -> str:
    """Number of nodes as text: the agent wants it in the environment, the operator gives it as an option."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--nnodes", default=os.environ.get("PET_NNODES", "1"))
    return parser.parse_known_args(arguments)[0].nnodes.partition(":")[0]


def mend() -> None:
    """Make an agent made for torch below 2.12 run on this torch; one made for this torch stays as it is.

    torchrun has an option and the base class an attribute now that the agent had for itself: the first
    ends the agent at its start, the second gives ranks 30 s whatever --shutdown-timeout says.
    """
    from hyperpod_elastic_agent import run  # noqa: PLC0415 (2 s to import)
    from hyperpod_elastic_agent.elastic_agent.hyperpod_elastic_agent import (  # noqa: PLC0415
        HyperPodElasticAgent,
    )

    make_parser = run.get_args_parser
    try:
        run.add_additional_hyperpod_args(make_parser())
    except argparse.ArgumentError:
        pass
    else:
        return

    def tolerant() -> argparse.ArgumentParser:
        parser = make_parser()
        for container in (parser, *parser._action_groups):
            container.conflict_handler = "resolve"
        return parser

    run.get_args_parser = tolerant
    HyperPodElasticAgent._shutdown_timeout = property(
        lambda agent: agent._shutdown_config.shutdown_timeout,
        lambda _agent, _value: None,  # the base class's own default
    )


def main(arguments: list[str]) -> int:
    """Run the agent; it ends when the operator or a signal says so."""
    if find_spec("hyperpod_elastic_agent") is None:
        raise TrainerError(
            "launch_hyperpod",
            "an environment without hyperpod-elastic-agent",
            "the trainer's image",
            "pip install hyperpod-elastic-agent==1.1.2, or start with torchrun",
        )
    os.environ.setdefault("NNODES", nodes(arguments))
    mend()
    from hyperpod_elastic_agent import run  # noqa: PLC0415

    run.main(defaults(arguments))
    return Exit.DONE


if __name__ == "__main__":
    # The agent's thread that reads logs never ends, and a pod would wait for it to be killed.
    leave(exit_code(main, sys.argv[1:]))
