"""The example pods in Python with one fault each, to see that the checks notice: `broken.py EXAMPLE-FAULT`, then the example's
arguments, where EXAMPLE is `etcd`, `grpc` or `kafka`.
"""

import asyncio
import copy
import json
import pathlib
import sys

from segue_pod import lease_now

EXAMPLES = pathlib.Path(__file__).resolve().parents[2] / "examples"


def no_tail(writer, pod):
    """Confirms that it has read the old owner's last writes, but reads nothing."""

    async def sync(self, part):
        pass

    writer.Writer.sync = sync
    if hasattr(pod, "KafkaWriter"):
        # A claim reads the tail as well.
        pod.KafkaWriter.enter = writer.Writer.enter


def no_warm(writer, pod):
    """Takes a partition over without its state."""

    async def warm(self, part):
        _, end = await self.log.read(part.partition, 0)
        self.states[part.partition] = self.state()
        self.states[part.partition].apply([], end)

    writer.Writer.warm = writer.CheckpointingWriter.warm = warm
    if hasattr(pod, "KafkaWriter"):
        del pod.KafkaWriter.warm


def only_checkpoint(writer, pod):
    """Starts from the newest checkpoint and ignores what was written since."""

    async def warm(self, part):
        state = await self.saved(part.partition, part.checkpoint)
        _, state.read_to = await self.log.read(part.partition, 0)
        self.states[part.partition] = state

    writer.CheckpointingWriter.warm = warm
    if hasattr(pod, "KafkaWriter"):
        del pod.KafkaWriter.warm


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


def kept(writer, name):
    """Returns the file in which a pod keeps something for the process after it."""
    return writer.log.folder / f"{name}.kept"


def keeps_token(writer, pod):
    """Goes on with the token of the process before."""

    class Keeping(pod.Membership):
        def __init__(self, *arguments, **settings):
            super().__init__(*arguments, **settings)
            file = kept(self.service, self.name)
            self.coordinator.resume = file.read_bytes() if file.exists() else b""

        def welcomed(self, welcome):
            super().welcomed(welcome)
            kept(self.service, self.name).write_bytes(welcome.resume)

    pod.Membership = Keeping


def keeps_ownership(writer, pod):
    """Serves what the process before has owned until it is registered."""

    class Keeping(pod.Membership):
        def __init__(self, *arguments, **settings):
            super().__init__(*arguments, **settings)
            file = kept(self.service, self.name)
            if file.exists():
                self.ownership.epochs = {int(partition): epoch for partition, epoch in json.loads(file.read_text()).items()}
                self.service.states = {partition: self.service.state() for partition in self.ownership.epochs}
                self.ownership.confirm(lease_now(), 60, 60)

        async def assigned(self, event):
            await super().assigned(event)
            kept(self.service, self.name).write_text(json.dumps(self.ownership.epochs))

    pod.Membership = Keeping


def stays_down(writer, pod):
    """Ends at once if it is started again."""

    class Once(pod.Membership):
        def __init__(self, *arguments, **settings):
            super().__init__(*arguments, **settings)
            file = kept(self.service, self.name)
            if file.exists():
                sys.exit(3)
            file.touch()

    pod.Membership = Once


def any_life(writer, pod):
    """Does what handoffs to its earlier lives ask for."""
    import membership

    def of_any_life(decide):
        def decided(view, own, *arguments):
            view = dict(view)
            for key, entry in view.items():
                if key.startswith("handoffs/") and entry.value and entry.value["new_owner"] == own.name:
                    view[key] = copy.copy(entry)
                    view[key].value = entry.value | {"new_incarnation": own.incarnation}
            return decide(view, own, *arguments)

        return decided

    membership.due, membership.partitions = of_any_life(membership.due), of_any_life(membership.partitions)


FAULTS = {
    "no-tail": no_tail,
    "no-warm": no_warm,
    "only-checkpoint": only_checkpoint,
    "late-write": late_write,
    "keeps-token": keeps_token,
    "keeps-ownership": keeps_ownership,
    "stays-down": stays_down,
    "any-life": any_life,
}


def main():
    example, _, fault = sys.argv.pop(1).partition("-")
    sys.path.insert(0, str(EXAMPLES / ("kafka-pod" if example == "kafka" else f"python-{example}-pod")))
    import pod
    import writer

    FAULTS[fault](writer, pod)
    return asyncio.run(pod.main())


if __name__ == "__main__":
    sys.exit(main())
