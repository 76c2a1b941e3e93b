"""Decides when a life ends because the store went back, and what has to be written before the next one begins. No I/O.

A store that is restored from a backup without higher revisions, or that has lost its volume, goes back. Revisions that
identified lives and handoffs, and the epochs that were taken from them, come again.

Invariants:

* Only a snapshot shows that the store went back, because etcd answers it by a majority. The pod asks for one after another, and
  a watch ends before the next, so a lower revision is not one that was overtaken.
* The floor is raised above every epoch that the pod may have seen, and does not fall.
"""

LAST_EPOCH = 2**53


class Horizon:
    """How far a pod has seen its store."""

    def __init__(self):
        self.highest = 0  # revision since the store last went back
        self.floor = self.began = 0  # of epochs: the highest that was seen, and the one under which this life began
        self.used = 0  # the highest epoch that may have been used before the store went back
        self.config = None

    def saw(self, revision, config):
        """Takes the revision of a snapshot, and the keyspace's settings in it."""
        if revision < self.highest:
            self.used = max(self.used, self.floor + self.highest)
            self.highest = 0
        self.saw_changes([], config)
        self.highest = max(self.highest, revision)

    def saw_changes(self, changes, config):
        """Takes changes of a watch, and the settings after them."""
        self.config = config
        self.floor = max(self.floor, self.stored() or 0)
        self.highest = max([self.highest, *(entry.mod_revision for _, entry in changes if entry is not None)])

    def stored(self):
        """Returns the floor in the settings. None if they are not readable."""
        if self.config is None or self.config.value is None:
            return None
        floor = self.config.value.get("epoch_floor", 0)
        return floor if isinstance(floor, int) and 0 <= floor <= LAST_EPOCH else None

    def is_low(self):
        floor = self.stored()
        return floor is not None and 0 < self.used and floor <= self.used and floor < LAST_EPOCH

    def begin_life(self):
        self.began = self.floor

    def ends_life(self):
        """Says whether the store went back during this life, as the pod has seen or another one says by the floor."""
        return self.floor > self.began or self.is_low()

    def raised(self):
        """Returns the settings with a floor that is high enough. None if it is, or if they are not readable: nothing is planned
        without them."""
        return self.config.value | {"epoch_floor": min(self.used + 1, LAST_EPOCH)} if self.is_low() else None
