"""Writer pods in several languages take part in one keyspace under checked load, while pods crash and restart, all their
connections break every second, and the leading coordinator is killed every second. Then `segue conformance` sends requests to each
pod, and plays handoffs with a pod of each example.

`make pods`; a shorter run: `make pods ARGS=--short`; with a faulty pod, which the checks have to notice:
`make pods ARGS="--short --sabotage etcd-no-tail"`.
"""

import argparse
import asyncio
import collections
import json
import os
import random
import signal
import sys

sys.path.append(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

from conformance import answer, conform  # noqa: E402
from harness.processes import folder_of_processes  # noqa: E402
from site_of_pods import KEYSPACE, LEASE, Site  # noqa: E402

# At the end of the load nothing fails any more, so that all that is held gets its response.
CALM = 10


class Run:
    def __init__(self, site, seed):
        self.site, self.random = site, random.Random(seed)
        self.faults = collections.Counter()
        self.checkpoints = collections.Counter()  # by the name of the pod that made them
        self.killed = 0  # the last leadership that was ended
        self.started = None  # the pod whose process was started last
        self.calm = asyncio.Event()

    async def every_second(self, act):
        while not self.calm.is_set():
            await act()
            await asyncio.sleep(1)

    async def break_connections(self):
        for breaker in self.site.breakers:
            breaker.break_all()
        self.faults["breaks of all connections"] += 1

    async def kill_leader(self):
        leader = (await self.site.view.keyspace(KEYSPACE)).get("coordinator/leader")
        # The key of a leader that was killed stays until its lease ends.
        if leader and leader.create_revision > self.killed:
            name, self.killed = leader.value["holder"], leader.create_revision
            self.site.coordinators[name].kill()
            self.site.start_coordinator(name)
            self.faults["leaders killed"] += 1

    async def restart_pods(self):
        """Crashes and ends pods in turn, each of them as often as the others. Pods on Kafka, whose log refuses what is late,
        are also paused."""
        while not self.calm.is_set():
            pods = list(self.site.pods.values())
            self.random.shuffle(pods)
            # A process that has only just begun may not know the signal yet.
            if pods[0] is self.started:
                pods.reverse()
            for number, pod in enumerate(pods):
                if self.calm.is_set():
                    return
                if self.site.kafka and number % 3 == 0:
                    await self.pause(pod)
                    continue
                if number % 2:
                    pod.process.kill()
                    self.faults["pods killed"] += 1
                else:
                    pod.process.end()
                    code = await asyncio.to_thread(pod.process.process.wait)
                    assert code == 0, f"{pod.name} ended with {code}:\n{pod.process.tail()}"
                    self.faults["pods restarted"] += 1
                pod.start(self.site.folder)
                self.started = pod
                await asyncio.sleep(self.random.uniform(0.5, 1.5))

    async def pause(self, pod):
        """Stops a pod until others have its partitions, and lets it go on."""
        pod.process.process.send_signal(signal.SIGSTOP)
        await asyncio.sleep(LEASE + 2)
        pod.process.process.send_signal(signal.SIGCONT)
        self.faults["pods paused"] += 1

    async def count_checkpoints(self):
        async for entry, is_new in self.site.view.records(f"/segue/{KEYSPACE}/checkpoints/"):
            self.checkpoints[entry.value["pod_name"]] += is_new and entry.value["checkpoint"] is not None


async def load(site, seconds, seed, kafka):
    """Sends load for this time. Returns the report."""
    command = [site.program, "bench", *site.routers, "--partitions", str(site.partitions)]
    command += [] if kafka else ["--log-dir", site.logs]
    command += ["--clients", "24", "--duration", f"{seconds}s", "--seed", str(seed), "--json"]
    bench = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    output, _ = await bench.communicate()
    return json.loads(output)


def written_by(site):
    """Returns the number of records that each pod has written."""
    count = collections.Counter()
    for name in os.listdir(site.logs):
        if name.endswith(".log"):
            with open(os.path.join(site.logs, name), encoding="utf-8") as log:
                count.update(json.loads(line)["pod"] for line in log)
    return count


async def play(site, arguments):
    await site.begin(arguments.each, arguments.kafka, arguments.sabotage)
    run = Run(site, arguments.seed)
    counting = [asyncio.create_task(count) for count in (site.view.count_moves(f"/segue/{KEYSPACE}/"), run.count_checkpoints())]
    loading = asyncio.create_task(load(site, arguments.seconds, arguments.seed, arguments.kafka))
    asyncio.get_running_loop().call_later(arguments.seconds - CALM, run.calm.set)
    await asyncio.gather(run.every_second(run.break_connections), run.every_second(run.kill_leader), run.restart_pods())
    report = await loading
    for count in counting:
        count.cancel()
    if not arguments.sabotage:
        await site.settled()

    if arguments.kafka:
        await site.copy_topic()
        await site.settled()
    kinds = ["lost", "duplicated", "misrouted", "reordered", "dual_writer_overlaps", "unsettled"]
    harm = sum(report[kind] for kind in kinds)
    for kind in kinds:
        if report[kind]:
            print(f"  {kind}: {report[kind]}: {report['harm'].get(kind, [])[:2]}")
    print(f"  {report['requests']:,} requests, errors {json.dumps(report['errors'])}, seed {arguments.seed}")
    print("  " + ", ".join(f"{count} {what}" for what, count in run.faults.items()))
    written = written_by(site)
    print("  records: " + ", ".join(f"{name} {written[name]:,}" for name in site.pods))
    idle = [name for name in site.pods if not written[name]]
    if idle:
        print(f"  these pods wrote nothing: {', '.join(idle)}")
    print("  checkpoints: " + ", ".join(f"{name} {run.checkpoints[name]:,}" for name in site.pods))
    lazy = [name for name in site.pods if not run.checkpoints[name]]
    if lazy:
        print(f"  these pods made no checkpoint: {', '.join(lazy)}")
    handoffs = site.view.moves[KEYSPACE]
    if handoffs < arguments.handoffs:
        print(f"  fewer handoffs than {arguments.handoffs}")
    languages = len({pod.language for pod in site.pods.values() if written[pod.name]})
    pods = [] if arguments.sabotage else list(site.pods.values())
    answering = await answer(site, pods)
    played = [*pods, *site.counters()] if pods and not arguments.kafka else pods
    examples = {pod.kind: pod for pod in played if pod.plays_handoffs}
    conforming = await conform(site, list(examples.values()))
    conform_in = f"answer={answering}/{len(pods)} conform={conforming}/{len(examples)}"
    print(f"pods: languages={languages} handoffs={handoffs} harm={harm} {conform_in}")
    is_sound = report["sound"] and not harm and not idle and not lazy and handoffs >= arguments.handoffs
    return is_sound and answering == len(pods) and conforming == len(examples)


async def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--binaries", required=True, help="the folder of segue, go-grpc-pod, go-counter-pod and examples/writer")
    arguments.add_argument("--short", action="store_true", help="40 seconds and 100 handoffs")
    arguments.add_argument("--seconds", type=int, default=240, help="duration of the load")
    arguments.add_argument("--handoffs", type=int, default=1000, help="fail if there are fewer")
    arguments.add_argument("--partitions", type=int, default=96)
    arguments.add_argument("--each", type=int, default=1, help="number of pods of each kind")
    arguments.add_argument("--kafka", action="store_true", help="pods that keep their state in Kafka, in place of all others")
    arguments.add_argument("--seed", type=int, default=1)
    arguments.add_argument("--sabotage", metavar="FAULT", help="adds a pod with a fault of broken.py")
    arguments = arguments.parse_args()
    if arguments.short:
        arguments.seconds, arguments.handoffs = 40, 100
    good = False
    with folder_of_processes("pods", shows_tails=lambda _failed: not good and not arguments.sabotage) as folder:
        site = Site(arguments.binaries, folder, arguments.partitions)
        try:
            good = await play(site, arguments)
            return good
        finally:
            for breaker in site.breakers:
                await breaker.close()
            await site.view.store.close()


if __name__ == "__main__":
    sys.exit(0 if asyncio.run(main()) else 1)
