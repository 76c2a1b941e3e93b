"""A log for each key, as the services keep it that have none of their own: lines of a file that all pods share.

A pod keeps the number of records of a key in memory for as long as its epoch lasts, as a service does that reads its
state when it becomes the owner. If two pods wrote, or one with an outdated state, two records would have the same
position.
"""

import asyncio
import os
import random

import work


class Log:
    def __init__(self, arguments, notes):
        self.pod, self.notes = arguments.name, notes
        self.takes = arguments.takes
        self.delay = 1.0 if arguments.acknowledge_early else 0
        self.folder = os.path.join(arguments.folder, "log")
        os.makedirs(self.folder, exist_ok=True)
        self.lengths = {}  # by key: the epoch and the number of records

    def path(self, key):
        return os.path.join(self.folder, work.in_file_name(key))

    async def append(self, key, headers, name):
        """Appends a record, and returns its position, from 1 on. `headers` are those of the request."""
        with self.notes.on(key, headers):
            # What a service does for a request takes a moment, in which another pod could be at work as well.
            await asyncio.sleep(random.uniform(0, self.takes))
            epoch = headers.get("segue-epoch")
            known, length = self.lengths.get(key, (None, 0))
            if known != epoch:
                length = len(work.read(self.path(key)))
            position = length + 1
            self.lengths[key] = (epoch, position)
            record = {"name": name, "position": position, "epoch": epoch, "pod": self.pod}
            if self.delay:
                asyncio.get_running_loop().call_later(self.delay, work.append, self.path(key), record)
            else:
                work.append(self.path(key), record)
            return position

    def records(self, key, after):
        return work.read(self.path(key))[after:]
