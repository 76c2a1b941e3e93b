"""Checks, which are functions of what they share, and a line for each that says what came out."""

import time
import traceback

from .processes import tails


class Reported(AssertionError):
    """A failure whose details are printed already."""


def chosen(checks, only):
    found = [check for check in checks if only in check.__name__]
    assert found, f"no check has {only!r} in its name"
    return found


def run_checks(checks, run):
    """Plays the checks with `run.play`. `run.notes` is what a check has to say when it passes. Returns how many failed."""
    failed = 0
    for check in checks:
        began, run.notes = time.monotonic(), []
        try:
            run.play(check)
            result = f"passed {time.monotonic() - began:.1f}s"
        except Reported as error:
            failed += 1
            result = f"FAILED: {error}"
        except Exception:  # noqa: BLE001: whatever it is, the check has failed
            failed += 1
            result = f"FAILED\n{traceback.format_exc()}{tails()}"
        print(f"{check.__name__} | {'; '.join(run.notes)} | {result}", flush=True)
    return failed
