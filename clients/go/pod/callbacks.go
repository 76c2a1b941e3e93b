package pod

import (
	"context"
	"errors"
	"fmt"
)

// HandoffContext is the subject of a callback.
type HandoffContext struct {
	Partition uint32
	// Epoch begins (Warm, Sync), ends (Leaving, Drain, Release) or lasts (Checkpoint).
	Epoch uint64
	// FromAddress is for Warm and Sync the address of the old owner, if one is alive.
	FromAddress string
	// ToAddress is for Leaving, Drain and Release the address of the new owner, if there is one and it is alive.
	ToAddress string
	// Checkpoint is for Warm the name of the newest checkpoint, from which the state can start.
	Checkpoint string
}

// Callbacks are what a service does in a handoff, all of them optional. A pod registers the capability sync if there is a Sync, and
// checkpoint if there is a Checkpoint. A callback that returns an error is called again while it is due. The context of one that is
// no longer due is cancelled.
type Callbacks struct {
	// Warm copies the state while the old owner still serves. Without an old owner it has to read everything.
	Warm func(ctx context.Context, part HandoffContext) error
	// Sync reads what the old owner has written since. It has stopped for good, and requests wait.
	Sync func(ctx context.Context, part HandoffContext) error
	// Leaving ends the service's own streams of the partition, which still serves. Nobody waits for it.
	Leaving func(part HandoffContext)
	// Drain returns once nothing of the partition is written any more. No request is in flight.
	Drain func(ctx context.Context, part HandoffContext) error
	// Release frees the state, even if it was only partly copied. It is never cancelled.
	Release func(part HandoffContext)
	// Checkpoint makes a checkpoint while requests continue. It returns its name, or "" if nothing is newer than the last one.
	Checkpoint func(ctx context.Context, part HandoffContext) (string, error)
	// Keys returns the number of keys of partitions, for max_keys_per_partition. It is called for each heartbeat, so it must not
	// block.
	Keys func() map[uint32]uint64
}

var errPermanent = errors.New("it fails for good")

// Permanent wraps the error of a Warm or Sync that can never succeed on this pod. The coordinator plans another pod at once.
func Permanent(err error) error { return fmt.Errorf("%w: %v", errPermanent, err) }

func (c *Callbacks) release(part HandoffContext) {
	if c.Release != nil {
		c.Release(part)
	}
}
