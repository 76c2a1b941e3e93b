package pod

import (
	"context"
	"log"
	"time"

	"golang.org/x/sys/unix"
)

// catchUp is how long a request waits for an ownership that its router may have learnt of before the pod.
const catchUp = 250 * time.Millisecond

// leaseNow reads the clock that leases are counted by, which counts suspended time.
func leaseNow() time.Duration {
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &now); err != nil {
		log.Fatalf("the clock of leases cannot be read: %v", err)
	}
	return time.Duration(now.Nano())
}

// Owned is what an accepted request may rely on.
type Owned struct {
	Partition uint32
	Epoch     uint64
	// Incarnation is the life of the pod that has accepted the request.
	Incarnation uint64
	membership  *Membership
}

// MayWrite says whether what this request writes now takes effect before its lease can have ended. A write may take a sixth of
// the lease; one that takes longer has to fail by itself.
func (o *Owned) MayWrite() bool {
	m := o.membership
	m.mu.Lock()
	defer m.mu.Unlock()
	return o.Incarnation == m.incarnation && leaseNow() < m.standsUntil
}

// Exit ends a request that [Membership.Enter] has accepted.
func (o *Owned) Exit() {
	m := o.membership
	m.mu.Lock()
	defer m.mu.Unlock()
	m.inFlight[o.Partition]--
	m.notify()
}

// Enter accepts a request of this partition and epoch, or returns nil: then nothing may be done for it. An accepted request counts
// as in flight until [Owned.Exit]. A service with [Membership.Handler] needs neither.
func (m *Membership) Enter(ctx context.Context, partition uint32, epoch uint64) *Owned {
	wait, cancel := context.WithTimeout(ctx, catchUp)
	defer cancel()
	m.mu.Lock()
	defer m.mu.Unlock()
	m.until(wait, func() bool { return m.owned[partition] >= epoch })
	if owned, ok := m.owned[partition]; !ok || owned != epoch || leaseNow() >= m.trustedUntil {
		return nil
	}
	m.inFlight[partition]++
	return &Owned{partition, epoch, m.incarnation, m}
}

// confirm extends the lease: it was renewed after sent. The caller holds the lock.
func (m *Membership) confirm(sent time.Duration) {
	m.trustedUntil = sent + m.trust
	// Half-way between trust and the end of the lease, because clocks may differ in speed.
	m.standsUntil = sent + (m.trust+m.leaseTTL)/2
}

// fence stops all requests: the registration is over. The caller holds the lock.
func (m *Membership) fence() {
	m.owned = map[uint32]uint64{}
	m.trustedUntil, m.standsUntil = 0, 0
}

// until waits until the condition holds. The caller holds the lock.
func (m *Membership) until(ctx context.Context, holds func() bool) bool {
	for !holds() {
		changed := m.changed
		m.mu.Unlock()
		select {
		case <-changed:
		case <-ctx.Done():
		}
		m.mu.Lock()
		if ctx.Err() != nil {
			return holds()
		}
	}
	return true
}

// notify wakes all that wait. The caller holds the lock.
func (m *Membership) notify() {
	close(m.changed)
	m.changed = make(chan struct{})
}
