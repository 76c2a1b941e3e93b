"""What a service implements: the callbacks of a handoff."""

from typing import NamedTuple, Protocol


class HandoffContext(NamedTuple):
    """The subject of a callback."""

    partition: int
    epoch: int
    """The epoch that begins (`warm`, `sync`), ends (`leaving`, `drain`, `release`) or lasts (`checkpoint`)."""
    from_address: str = ""
    """For `warm` and `sync`: the address of the old owner, if one is alive."""
    to_address: str = ""
    """For `leaving`, `drain` and `release`: the address of the new owner, if there is one and it is alive."""
    checkpoint: str = ""
    """For `warm`: the name of the newest checkpoint, from which the state can start."""


class PermanentFailure(Exception):
    """Raised by `warm` or `sync` if they can never succeed on this pod. The coordinator plans another pod at once."""


class Callbacks(Protocol):
    """The callbacks of a handoff, all of them optional: a service is any object that has some of these.

    A pod registers the capability `sync` if its service has `sync`, and `checkpoint` if it has `checkpoint`. A callback that raises is
    called again while it is due. One that is no longer due is cancelled, except `release`.
    """

    async def warm(self, part: HandoffContext) -> None:
        """Copies the state while the old owner still serves. Without an old owner it has to read everything."""

    async def sync(self, part: HandoffContext) -> None:
        """Reads what the old owner has written since. It has stopped for good, and requests wait."""

    async def leaving(self, part: HandoffContext) -> None:
        """Ends the service's own streams of the partition, which still serves. Nobody waits for it."""

    async def drain(self, part: HandoffContext) -> None:
        """Returns once nothing of the partition is written any more. No request is in flight."""

    async def release(self, part: HandoffContext) -> None:
        """Frees the state, even if it was only partly copied."""

    async def checkpoint(self, part: HandoffContext) -> str:
        """Makes a checkpoint while requests continue. Returns its name, or "" if nothing is newer than the last one."""

    def keys(self) -> dict[int, int]:
        """Returns the number of keys of partitions, for `max_keys_per_partition`. Called for each heartbeat, so it must not block."""


def provides(service, name):
    """Says whether a service has this callback, and not only inherits it from `Callbacks`."""
    callback = getattr(service, name, None)
    return callback is not None and getattr(callback, "__func__", callback) is not getattr(Callbacks, name)
