package pod

import (
	"context"
	"time"

	pb "github.com/segue-proxy/segue/clients/go/internal/podspb"
)

// maxAcks is the most acknowledgements that one call may carry.
const maxAcks = 4096

type ackKey struct {
	partition uint32
	handoff   uint64
	kind      pb.AckKind
}

func (m *Membership) ack(ack *pb.Ack) {
	m.mu.Lock()
	m.acks[ackKey{ack.GetId().GetPartition(), ack.GetId().GetHandoff(), ack.GetKind()}] = ack
	m.mu.Unlock()
	m.ackSoon()
}

func (m *Membership) ackSoon() {
	select {
	case m.acksDue <- struct{}{}:
	default:
	}
}

// sendAcks sends each acknowledgement, to any instance, until it gets a response.
func (m *Membership) sendAcks(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-m.acksDue:
		}
		var due []*pb.Ack
		m.mu.Lock()
		for _, ack := range m.acks {
			due = append(due, ack)
		}
		m.mu.Unlock()
		again := false
		for len(due) > 0 {
			batch := due
			if len(batch) > maxAcks {
				batch = batch[:maxAcks]
			}
			due = due[len(batch):]
			// What is too early must not keep the others from their turn.
			if m.send(ctx, batch) {
				again = true
			}
		}
		if again {
			m.ackSoon()
			sleep(ctx, 100*time.Millisecond)
		}
	}
}

// send sends acknowledgements once. It returns whether some have to be sent again.
func (m *Membership) send(ctx context.Context, batch []*pb.Ack) bool {
	m.mu.Lock()
	client, request := m.client, &pb.AckRequest{Resume: m.resume, Acks: batch}
	m.mu.Unlock()
	call, cancel := context.WithTimeout(ctx, 5*time.Second)
	answer, err := client.Ack(call, request)
	cancel()
	again := err != nil
	m.mu.Lock()
	defer m.mu.Unlock()
	for i, outcome := range answer.GetOutcomes() {
		if outcome == pb.AckOutcome_AGAIN {
			again = true
		} else if i < len(batch) {
			id := batch[i].GetId()
			key := ackKey{id.GetPartition(), id.GetHandoff(), batch[i].GetKind()}
			if m.acks[key] == batch[i] {
				delete(m.acks, key)
			}
		}
	}
	return again
}
