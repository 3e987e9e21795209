"""The command line of the embedded server; its flags have the names that SGLang's have."""

from __future__ import annotations

import argparse
import os
import sys

from ray_jobs.core.errors import EagleRayError


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m ray_jobs.target.embedded", description=__doc__)
    parser.add_argument("--model-path", required=True, help="folder of a transformers decoder and its tokenizer")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=30000, help="0: a free one")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="bfloat16", help="type of the weights")
    parser.add_argument("--threads", type=int, help="threads of the model; default: all cores")
    parser.add_argument("--max-running-requests", type=int, default=48, help="rows that run together")
    parser.add_argument(
        "--max-total-tokens", type=int, help="tokens that the cache may hold; default: a quarter of memory"
    )
    parser.add_argument(
        "--aux-layers", type=int, nargs="+", help="layers whose outputs are returned; default: EAGLE-3's"
    )
    parser.add_argument("--enable-return-hidden-states", action="store_true")
    parser.add_argument("--enable-return-aux-hidden-states", action="store_true", help="return the aux layers' states")
    parser.add_argument(
        "--enable-deterministic-inference",
        action="store_true",
        help="steps of one shape, so that greedy answers do not depend on what else runs; small models always do so",
    )
    parser.add_argument("--faults", default="{}", help='what goes wrong, as JSON: {"error_500_share":0.1}')
    parser.add_argument("--exit-with-parent", action="store_true", help="end when standard input closes")
    return parser


def main(arguments: list[str] | None = None) -> int:
    """Serve until told to stop; returns the exit code."""
    given = _parser().parse_args(arguments)
    # read when torch is loaded. By default its threads spin for milliseconds at the end of every small product; as
    # soon as another process wants one of the cores, a step then takes ten times as long (measured)
    os.environ.setdefault("GOMP_SPINCOUNT", "2000")
    # imported late: --help and a wrong flag should not wait for torch
    from ray_jobs.target.embedded import serving
    from ray_jobs.target.embedded.faults import Faults
    from ray_jobs.target.embedded.replies import Settings

    if given.exit_with_parent:
        serving.exit_with_parent()
    settings = Settings(
        model_path=given.model_path,
        host=given.host,
        port=given.port,
        dtype=given.dtype,
        threads=given.threads,
        max_running_requests=given.max_running_requests,
        max_total_tokens=given.max_total_tokens,
        enable_return_hidden_states=given.enable_return_hidden_states,
        enable_return_aux_hidden_states=given.enable_return_aux_hidden_states,
        enable_deterministic_inference=given.enable_deterministic_inference,
        aux_layers=tuple(given.aux_layers) if given.aux_layers else None,
    )
    try:
        return serving.run(settings, Faults.parse(given.faults))
    except EagleRayError as error:
        print(error, file=sys.stderr)
        return error.exit_code


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    sys.stderr.flush()
    # not sys.exit: the interpreter's own end may wait for, or crash under, a forward that still runs in the engine
    os._exit(code)
