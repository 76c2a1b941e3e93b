"""Waiting for conditions. None is waited for in vain for ever, and a connection that fails counts as not yet."""

import asyncio
import http.client
import time

# Seconds. A machine that is busy with other tests may take many for what is usually immediate.
PATIENCE = 60.0
INTERVAL = 0.05


class Wait:
    def __init__(self, condition, what, patience):
        self.condition, self.what, self.deadline = condition, what, time.monotonic() + patience

    def look(self):
        """Returns what the condition does, if that is true."""
        try:
            found, reason = self.condition(), ""
        except (OSError, http.client.HTTPException) as error:
            found, reason = None, f": {error!r}"
        if not found and time.monotonic() > self.deadline:
            raise AssertionError(f"waited in vain for {self.what}{reason}")
        return found


def until(condition, what, patience=PATIENCE):
    wait = Wait(condition, what, patience)
    while not (found := wait.look()):
        time.sleep(INTERVAL)
    return found


async def eventually(condition, what, patience=PATIENCE):
    """Does what `until` does, beside other tasks. The condition may block."""
    wait = Wait(condition, what, patience)
    while not (found := await asyncio.to_thread(wait.look)):
        await asyncio.sleep(INTERVAL)
    return found
