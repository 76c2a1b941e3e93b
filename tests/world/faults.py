"""What happens to the pods of a service meanwhile: operators move partitions, a pod ends orderly and returns, a sidecar
or its service is killed and returns. One thing at a time for each service, in an order that the seed decides."""

import asyncio
import collections
import os
import random
import signal
import subprocess
import time

from site_of_services import PARTITIONS

# Within this time a move is done, and after a restart or a kill all partitions have owners. Without load from elsewhere
# it takes seconds; an exchange in flight may delay it by `router.drain.patience` and `router.drain.timeout`.
BOUND = 60


class Faults:
    def __init__(self, site, service, harm, seed):
        self.site, self.service, self.harm = site, service, harm
        self.random = random.Random(f"{seed}-{service.name}")
        self.done = collections.Counter()
        self.slowest_move = 0.0

    async def play(self, until):
        """Plays faults until this moment, and ends with a settled site."""
        while time.monotonic() < until:
            cycle = [self.move] * 6 + [self.restart, self.kill, self.kill_service]
            self.random.shuffle(cycle)
            for act in cycle:
                if time.monotonic() >= until:
                    return
                await act()
                if not await self.site.settled(self.service.name, BOUND):
                    _, status = await self.site.operate_in(self.service.name, "status")
                    self.harm.add(self.service.name, f"not settled {BOUND} s after: {act.__name__}\n{status}")
                await asyncio.sleep(self.random.uniform(0.2, 1.0))

    async def move(self):
        """Moves up to three partitions at once, each to a pod that has not got it."""
        view = await self.site.view.keyspace(self.service.name)
        partitions = self.random.sample(range(PARTITIONS), self.random.randint(1, 3))
        names = [pod.name for pod in self.site.pods[self.service.name]]
        moves = []
        for partition in partitions:
            assignment = view.get(f"assignments/{partition}")
            # None after a site that has not settled, which is harm already.
            owner = assignment and assignment.value["owner"]
            moves.append(self.move_one(partition, owner, self.random.choice([name for name in names if name != owner])))
        await asyncio.gather(*moves)

    async def move_one(self, partition, owner, to):
        began = time.time()
        code, said = await self.site.operate_in(
            self.service.name, "move", str(partition), "--to", to, "--timeout", f"{BOUND}s", "--why", "make world",
        )
        self.slowest_move = max(self.slowest_move, time.time() - began)
        self.done["moves"] += 1
        if code:
            took = time.time() - began
            what = f"partition {partition} {owner} → {to}: exit {code} after {took:.1f} s: {said}"
            self.harm.add(self.service.name, what)

    async def restart(self):
        pod = self.random.choice(self.site.pods[self.service.name])
        began = time.time()
        pod.process.end()
        try:
            code = await asyncio.to_thread(pod.process.process.wait, 2 * BOUND)
        except subprocess.TimeoutExpired:
            code = "nothing"
            pod.process.kill()
        self.done["restarts"] += 1
        if code != 0:
            took = time.time() - began
            self.harm.add(self.service.name, f"{pod.name} ended with {code} {took:.1f} s after SIGTERM")
        pod.start()

    async def kill_service(self):
        """Kills the service's process alone. Its sidecar has to end as well, as docs/pods.md says of `exec`."""
        pod = self.random.choice(self.site.pods[self.service.name])
        partitions = await self.site.partitions_of(self.service.name, pod.name)
        services = pod.processes_of_service()
        self.harm.killed(self.service.name, pod.name, partitions)
        for process in services:
            os.kill(process, signal.SIGKILL)
        self.done["services killed"] += 1
        try:
            await asyncio.to_thread(pod.process.process.wait, BOUND)
        except subprocess.TimeoutExpired:
            self.harm.add(self.service.name, f"{pod.name} has not ended {BOUND} s after its service was killed")
            pod.process.kill()
        pod.start()

    async def kill(self):
        pod = self.random.choice(self.site.pods[self.service.name])
        partitions = await self.site.partitions_of(self.service.name, pod.name)
        self.harm.killed(self.service.name, pod.name, partitions)
        pod.process.kill()
        self.done["pods killed"] += 1
        await asyncio.sleep(self.random.uniform(0, 2))
        pod.start()
