package pod

import (
	"context"
	"errors"
	"log"
	"time"

	pb "github.com/segue-proxy/segue/clients/go/internal/podspb"
)

// runningTask is a task of a partition. One of a partition runs at a time, in the order in which they have begun.
type runningTask struct {
	kind    pb.AckKind
	handoff uint64
	cancel  context.CancelFunc
	done    chan struct{}
}

func (task *runningTask) isDone() bool {
	select {
	case <-task.done:
		return true
	default:
		return false
	}
}

// keepOnly stops the tasks of earlier streams that the first event of a stream does not list. The caller holds the lock.
func (m *Membership) keepOnly(due []*pb.Task) {
	isDue := map[ackKey]bool{}
	for _, task := range due {
		isDue[ackKey{task.GetId().GetPartition(), task.GetId().GetHandoff(), report(task)}] = true
	}
	for partition, running := range m.running {
		// A Release always ends. A checkpoint may be acknowledged as long as the pod owns its epoch.
		mayGoOn := running.kind == pb.AckKind_RELEASED || running.kind == pb.AckKind_CHECKPOINTED
		if !mayGoOn && !isDue[ackKey{partition, running.handoff, running.kind}] {
			m.abandon(partition)
		}
	}
}

// stop stops the task of a handoff, unless it is a Release. The caller holds the lock.
func (m *Membership) stop(dropped *pb.TaskId) {
	running := m.running[dropped.GetPartition()]
	if running != nil && running.handoff == dropped.GetHandoff() && running.kind != pb.AckKind_RELEASED {
		m.cancel(dropped.GetPartition())
	}
}

// abandon stops a task that is due no more. It frees what a Warm has copied: no Release follows, because the holdings do
// not list it. The caller holds the lock.
func (m *Membership) abandon(partition uint32) {
	running := m.running[partition]
	if running.isDone() {
		return
	}
	m.cancel(partition)
	if running.kind == pb.AckKind_READY {
		m.free(partition)
	}
}

// cancel cancels the partition's task and forgets it: it may take a while to end, and if it is due again meanwhile, it has
// to begin anew. The caller holds the lock.
func (m *Membership) cancel(partition uint32) {
	m.running[partition].cancel()
	delete(m.running, partition)
}

// free frees the state of a life or of a Warm that is over. The caller holds the lock.
func (m *Membership) free(partition uint32) {
	m.inTurn(partition, func() {
		m.mu.Lock()
		_, isHeld := m.held[partition]
		m.mu.Unlock()
		// A later Warm may have ended first.
		if !isHeld {
			m.callbacks.release(HandoffContext{Partition: partition})
		}
	})
}

// inTurn runs what all that the partition has run before precedes. It returns a channel that is closed at its end. The caller holds
// the lock.
func (m *Membership) inTurn(partition uint32, run func()) chan struct{} {
	before, done := m.turns[partition], make(chan struct{})
	m.turns[partition] = done
	go func() {
		defer close(done)
		if before != nil {
			<-before
		}
		run()
	}()
	return done
}

// begin replaces the partition's task. The caller holds the lock.
func (m *Membership) begin(task *pb.Task) {
	kind, partition, handoff := report(task), task.GetId().GetPartition(), task.GetId().GetHandoff()
	if leaving := task.GetLeaving(); leaving != nil && m.callbacks.Leaving != nil {
		go m.callbacks.Leaving(HandoffContext{Partition: partition, Epoch: task.GetEpoch(), ToAddress: leaving.GetToAddress()})
	}
	if kind == pb.AckKind_ACK_UNSPECIFIED {
		return // maybe a kind of a later version
	}
	if before := m.running[partition]; before != nil && !before.isDone() {
		if before.kind == kind && before.handoff == handoff {
			return // repeated after a reconnect
		}
		// A Release is finished before the next task begins.
		if before.kind != pb.AckKind_RELEASED {
			before.cancel()
		}
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := m.inTurn(partition, func() {
		defer cancel()
		if ctx.Err() == nil {
			m.do(ctx, kind, task)
		}
	})
	m.running[partition] = &runningTask{kind, handoff, cancel, done}
}

func (m *Membership) do(ctx context.Context, kind pb.AckKind, task *pb.Task) {
	for {
		checkpoint, err := m.call(ctx, kind, task)
		if ctx.Err() != nil {
			return
		}
		if err == nil {
			log.Printf("%v of partition %d, handoff %d", kind, task.GetId().GetPartition(), task.GetId().GetHandoff())
			ack := &pb.Ack{Id: task.GetId(), Kind: kind}
			if kind == pb.AckKind_CHECKPOINTED {
				ack.Checkpoint, ack.Epoch = []byte(checkpoint), task.GetEpoch()
			}
			m.ack(ack)
			return
		}
		log.Printf("%v of partition %d failed: %v", kind, task.GetId().GetPartition(), err)
		m.ack(&pb.Ack{Id: task.GetId(), Kind: kind, Failure: err.Error(), Permanent: errors.Is(err, errPermanent)})
		sleep(ctx, time.Second)
	}
}

// call runs the callback of a task. It returns the name of a checkpoint.
func (m *Membership) call(ctx context.Context, kind pb.AckKind, task *pb.Task) (string, error) {
	part := HandoffContext{Partition: task.GetId().GetPartition(), Epoch: task.GetEpoch()}
	switch kind {
	case pb.AckKind_READY:
		part.FromAddress, part.Checkpoint = task.GetWarm().GetFromAddress(), string(task.GetWarm().GetCheckpoint())
		return "", m.warm(ctx, part)
	case pb.AckKind_SYNCED:
		part.FromAddress = task.GetSync().GetFromAddress()
		return "", callIfSet(ctx, m.callbacks.Sync, part)
	case pb.AckKind_DRAINED:
		part.ToAddress = task.GetDrain().GetToAddress()
		if !m.untilIdle(ctx, part.Partition) {
			return "", ctx.Err()
		}
		return "", callIfSet(ctx, m.callbacks.Drain, part)
	case pb.AckKind_RELEASED:
		part.ToAddress = task.GetRelease().GetToAddress()
		if m.untilIdle(ctx, part.Partition) && m.letGo(part) {
			m.callbacks.release(part)
		}
	case pb.AckKind_CHECKPOINTED:
		if m.callbacks.Checkpoint != nil {
			return m.callbacks.Checkpoint(ctx, part)
		}
	}
	return "", ctx.Err()
}

func callIfSet(ctx context.Context, callback func(context.Context, HandoffContext) error, part HandoffContext) error {
	if callback == nil {
		return nil
	}
	return callback(ctx, part)
}

func (m *Membership) warm(ctx context.Context, part HandoffContext) error {
	m.mu.Lock()
	isHeld := m.held[part.Partition] == part.Epoch
	m.mu.Unlock()
	if isHeld {
		return nil
	}
	if err := callIfSet(ctx, m.callbacks.Warm, part); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	// A task that was cancelled meanwhile may belong to an earlier life.
	if ctx.Err() == nil {
		m.held[part.Partition] = part.Epoch
	}
	return nil
}

// untilIdle waits until no request of the partition is in flight. It returns false if the context ends first.
func (m *Membership) untilIdle(ctx context.Context, partition uint32) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.until(ctx, func() bool { return m.inFlight[partition] == 0 })
}

// letGo says whether a Release frees the state that the pod has, and forgets that the pod has it.
func (m *Membership) letGo(part HandoffContext) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	// A Warm of the stream before may have ended since this stream began: that is the state of a later epoch.
	if 0 < part.Epoch && part.Epoch < m.held[part.Partition] {
		return false
	}
	delete(m.held, part.Partition)
	return true
}

// report returns what a task is acknowledged with. Of a Leaving, and of a kind of a later version, that is nothing.
func report(task *pb.Task) pb.AckKind {
	switch task.GetKind().(type) {
	case *pb.Task_Warm:
		return pb.AckKind_READY
	case *pb.Task_Sync:
		return pb.AckKind_SYNCED
	case *pb.Task_Drain:
		return pb.AckKind_DRAINED
	case *pb.Task_Release:
		return pb.AckKind_RELEASED
	case *pb.Task_Checkpoint:
		return pb.AckKind_CHECKPOINTED
	}
	return pb.AckKind_ACK_UNSPECIFIED
}
