"""The example pods in Python with one fault each, to see that the checks notice: `broken.py EXAMPLE-FAULT`, then the example's
arguments, where EXAMPLE is `etcd`, `grpc` or `kafka`.
"""

import asyncio
import pathlib
import sys

EXAMPLES = pathlib.Path(__file__).resolve().parents[2] / "examples"


def no_tail(writer, pod):
    """Confirms that it has read the old owner's last writes, but reads nothing."""

    async def sync(self, partition):
        pass

    writer.Writer.sync = sync
    if hasattr(pod, "KafkaWriter"):
        # A claim reads the tail as well.
        pod.KafkaWriter.enter = writer.Writer.enter


def no_warm(writer, pod):
    """Takes a partition over without its state."""

    async def warm(self, partition, epoch, from_address, checkpoint=""):
        _, end = await self.log.read(partition, 0)
        self.states[partition] = self.state()
        self.states[partition].apply([], end)

    writer.Writer.warm = writer.CheckpointingWriter.warm = warm


def only_checkpoint(writer, pod):
    """Starts from the newest checkpoint and ignores what was written since."""

    async def warm(self, partition, epoch, from_address, checkpoint=""):
        state = self.saved(checkpoint)
        _, state.read_to = await self.log.read(partition, 0)
        self.states[partition] = state

    writer.CheckpointingWriter.warm = warm


def late_write(writer, pod):
    """Confirms each write before it is in the log."""
    append = writer.Log.append

    async def later(self, partition, record):
        async def act():
            await asyncio.sleep(0.2)
            await append(self, partition, record)

        asyncio.get_running_loop().create_task(act())
        path = self.path(partition)
        return path.stat().st_size if path.exists() else 0

    writer.Log.append = later


FAULTS = {"no-tail": no_tail, "no-warm": no_warm, "only-checkpoint": only_checkpoint, "late-write": late_write}


def main():
    example, _, fault = sys.argv.pop(1).partition("-")
    sys.path.insert(0, str(EXAMPLES / ("kafka-pod" if example == "kafka" else f"python-{example}-pod")))
    import pod
    import writer

    FAULTS[fault](writer, pod)
    return asyncio.run(pod.main())


if __name__ == "__main__":
    sys.exit(main())
