package main

import (
	"context"
	"errors"
	"log"
	"os"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	pb "segue/podspb"
)

// Service has the callbacks of a handoff. A callback that returns an error is called again while it is due.
type Service interface {
	// Warm copies the state while the old owner still serves, from the newest checkpoint on if there is one.
	Warm(ctx context.Context, partition uint32, epoch uint64, checkpoint string) error
	// Sync reads what the old owner has written since.
	Sync(ctx context.Context, partition uint32) error
	// Drain ends work that outlives its request.
	Drain(ctx context.Context, partition uint32) error
	// Release frees the state.
	Release(partition uint32)
	// Checkpoint makes a checkpoint while the pod serves. It returns its name, from which Warm starts in the next owner.
	Checkpoint(ctx context.Context, partition uint32, epoch uint64) (string, error)
}

// token is the file of the token that the coordinators require. It is read for each call, because it may be replaced.
type token string

func (file token) GetRequestMetadata(context.Context, ...string) (map[string]string, error) {
	content, err := os.ReadFile(string(file))
	if err != nil {
		return nil, err
	}
	return map[string]string{"authorization": "Bearer " + strings.TrimSpace(string(content))}, nil
}

// RequireTransportSecurity lets the token travel in clear text, as everything else of this example.
func (token) RequireTransportSecurity() bool { return false }

var errSilent = errors.New("the coordinator is silent")

// maxAcks is the most acknowledgements that one call may carry.
const maxAcks = 4096

type ackKey struct {
	partition uint32
	handoff   uint64
	kind      pb.AckKind
}

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

// Membership takes part in handoffs through the gRPC service of Segue's coordinators, and decides which requests may be
// accepted. It is independent of HTTP and of the service's state.
//
// Invariants:
//   - A request is accepted only at the epoch that the pod owns, and only while the lease clock runs.
//   - A request writes only in the life (the incarnation) that accepted it.
//   - The lease clock counts from when a confirmed heartbeat was sent, by a clock that counts suspended time.
//   - The token stays in this process. A restarted process is a new incarnation.
type Membership struct {
	coordinators              []string
	options                   []grpc.DialOption
	Keyspace, Name, address   string
	service                   Service
	mu                        sync.Mutex
	changed                   chan struct{} // closed at each change
	incarnation               uint64
	resume                    []byte
	owned                     map[uint32]uint64 // by partition: the epoch
	held                      map[uint32]uint64 // by partition: the epoch of the state that the pod has
	inFlight                  map[uint32]int
	trustedUntil, standsUntil time.Duration
	leaseTTL, trust           time.Duration
	running                   map[uint32]*runningTask
	turns                     map[uint32]chan struct{} // by partition: filled while one of its tasks runs
	acks                      map[ackKey]*pb.Ack
	acksDue                   chan struct{}
	client                    pb.PodsClient
	leaving, left             bool
}

// NewMembership returns the part of a pod that is not registered yet. Without a token file it presents no token.
func NewMembership(
	coordinators []string, tokenFile, keyspace, name, address string, ttl time.Duration, service Service,
) *Membership {
	options := []grpc.DialOption{grpc.WithInsecure()}
	if tokenFile != "" {
		options = append(options, grpc.WithPerRPCCredentials(token(tokenFile)))
	}
	return &Membership{
		options:      options,
		coordinators: coordinators, Keyspace: keyspace, Name: name, address: address, service: service,
		changed: make(chan struct{}), owned: map[uint32]uint64{}, held: map[uint32]uint64{}, inFlight: map[uint32]int{},
		leaseTTL: ttl, trust: ttl * 2 / 3, running: map[uint32]*runningTask{}, turns: map[uint32]chan struct{}{},
		acks: map[ackKey]*pb.Ack{}, acksDue: make(chan struct{}, 1),
	}
}

func clock(id int32) time.Duration {
	var now unix.Timespec
	if err := unix.ClockGettime(id, &now); err != nil {
		log.Fatalf("the clock %d cannot be read: %v", id, err)
	}
	return time.Duration(now.Nano())
}

func leaseNow() time.Duration { return clock(unix.CLOCK_BOOTTIME) }

// Enter returns the life in which a request is accepted, or false. An accepted request counts as in flight until Exit.
func (m *Membership) Enter(ctx context.Context, partition uint32, epoch uint64) (uint64, bool) {
	// The router may learn of the ownership before the pod does.
	wait, cancel := context.WithTimeout(ctx, 250*time.Millisecond)
	defer cancel()
	m.mu.Lock()
	defer m.mu.Unlock()
	m.until(wait, func() bool { return m.owned[partition] >= epoch })
	if owned, ok := m.owned[partition]; !ok || owned != epoch || leaseNow() >= m.trustedUntil {
		return 0, false
	}
	m.inFlight[partition]++
	return m.incarnation, true
}

// Exit ends a request that Enter accepted.
func (m *Membership) Exit(partition uint32) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.inFlight[partition]--
	m.notify()
}

// MayWrite says whether what a request that was accepted in this life writes now takes effect before its lease can have
// ended.
func (m *Membership) MayWrite(life uint64) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return life == m.incarnation && leaseNow() < m.standsUntil
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

// Run keeps a stream open to one of the coordinators until the pod has left.
func (m *Membership) Run(ctx context.Context) {
	go m.sendAcks(ctx)
	for turn := 0; ctx.Err() == nil; turn++ {
		target := m.coordinators[turn%len(m.coordinators)]
		err := m.connect(ctx, target)
		log.Printf("stream to %s ended: %v", target, err)
		if status.Code(err) == codes.NotFound {
			m.mu.Lock()
			m.fence()
			m.left = m.leaving
			m.notify()
			left := m.left
			m.mu.Unlock()
			if left {
				return
			}
		}
		sleep(ctx, 100*time.Millisecond)
	}
}

// fence stops all requests: the registration is over. The caller holds the lock.
func (m *Membership) fence() {
	m.owned = map[uint32]uint64{}
	m.trustedUntil, m.standsUntil = 0, 0
}

func (m *Membership) connect(ctx context.Context, target string) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	connection, err := grpc.DialContext(ctx, target, m.options...)
	if err != nil {
		return err
	}
	defer connection.Close()
	client := pb.NewPodsClient(connection)
	m.mu.Lock()
	m.client = client
	m.mu.Unlock()
	return m.follow(ctx, client)
}

func (m *Membership) follow(ctx context.Context, client pb.PodsClient) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	// A coordinator responds to every heartbeat. If it is silent, the pod leaves it while the lease is still good.
	silence := time.AfterFunc(m.trust/2, cancel)
	defer silence.Stop()
	stream, err := client.Register(ctx)
	if ctx.Err() != nil {
		return errSilent
	}
	if err != nil {
		return err
	}
	sent := map[uint64]time.Duration{1: leaseNow()}
	if err := stream.Send(m.firstHeartbeat()); err != nil {
		_, err = stream.Recv() // names the reason
		return err
	}
	events, failed := make(chan *pb.Event), make(chan error, 1)
	go func() {
		for {
			event, err := stream.Recv()
			if err != nil {
				failed <- err
				return
			}
			select {
			case events <- event:
			case <-ctx.Done():
				return
			}
		}
	}()
	var beats <-chan time.Time
	seq, seen := uint64(1), uint64(0)
	for {
		select {
		case event := <-events:
			silence.Reset(m.trust / 2)
			if welcome := event.GetWelcome(); welcome != nil {
				m.welcome(welcome)
				ticker := time.NewTicker(welcome.GetHeartbeatEvery().AsDuration())
				defer ticker.Stop()
				beats = ticker.C
			}
			m.apply(event, sent)
			seen = event.GetSeq()
			if event.GetGoAway() != nil {
				return errors.New("the coordinator shuts down")
			}
		case <-beats:
			seq++
			sent[seq] = leaseNow()
			if err := stream.Send(&pb.Heartbeat{Seq: seq, Seen: seen}); err != nil {
				beats = nil // the stream has ended: the reason follows the events that came before it
			}
		case err := <-failed:
			return err
		case <-ctx.Done():
			return errSilent
		}
	}
}

func (m *Membership) firstHeartbeat() *pb.Heartbeat {
	m.mu.Lock()
	defer m.mu.Unlock()
	first := &pb.Heartbeat{Seq: 1, Hello: m.hello()}
	for partition, running := range m.running {
		// Another instance may have told the Warm, and would wait anew for a checkpoint.
		if running.kind == pb.AckKind_READY && !running.isDone() {
			id := &pb.TaskId{Partition: partition, Handoff: running.handoff}
			first.Progress = append(first.Progress, &pb.Progress{Id: id})
		}
	}
	return first
}

// hello describes the pod. The caller holds the lock.
func (m *Membership) hello() *pb.Hello {
	hello := &pb.Hello{
		ProtocolMin: 1, ProtocolMax: 1, Keyspace: m.Keyspace, Pod: m.Name, Address: m.address,
		LeaseTtl: durationpb.New(m.leaseTTL), Resume: m.resume,
		Capabilities: []string{"sync", "drained", "released", "fence", "checkpoint"},
	}
	for partition, epoch := range m.held {
		hello.Holdings = append(hello.Holdings, &pb.Holding{Partition: partition, Epoch: epoch})
	}
	return hello
}

func (m *Membership) welcome(welcome *pb.Welcome) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !welcome.GetResumed() {
		// Another life: nothing of the earlier one is owned, and its state is of no use.
		m.fence()
		m.acks = map[ackKey]*pb.Ack{}
		for partition := range m.running {
			m.abandon(partition)
		}
		for partition := range m.held {
			m.service.Release(partition)
		}
		m.held = map[uint32]uint64{}
	}
	m.resume, m.incarnation = welcome.GetResume(), welcome.GetIncarnation()
	m.trust, m.leaseTTL = welcome.GetTrust().AsDuration(), welcome.GetLeaseTtl().AsDuration()
	log.Printf("registered: incarnation %d, resumed: %t", m.incarnation, welcome.GetResumed())
}

func (m *Membership) apply(event *pb.Event, sent map[uint64]time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if begun, ok := sent[event.GetConfirmed()]; ok {
		m.trustedUntil = begun + m.trust
		// Half-way between trust and the end of the lease, because clocks may differ in speed.
		m.standsUntil = begun + (m.trust+m.leaseTTL)/2
		for seq := range sent {
			if seq <= event.GetConfirmed() {
				delete(sent, seq)
			}
		}
	}
	if assignment := event.GetAssignment(); assignment != nil {
		if assignment.GetFull() {
			m.owned = map[uint32]uint64{}
		}
		for _, partition := range assignment.GetGone() {
			delete(m.owned, partition)
		}
		for _, owned := range assignment.GetOwned() {
			m.owned[owned.GetPartition()] = owned.GetEpoch()
		}
	}
	if event.GetWelcome() != nil {
		m.keepOnly(event.GetTasks())
	}
	for _, dropped := range event.GetDropped() {
		partition := dropped.GetPartition()
		running := m.running[partition]
		if running != nil && running.handoff == dropped.GetHandoff() && running.kind != pb.AckKind_RELEASED {
			m.cancel(partition)
		}
	}
	for _, task := range event.GetTasks() {
		m.begin(task)
	}
	m.notify()
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

// abandon stops a task that is due no more. It frees what a Warm has copied: no Release follows, because the holdings do
// not list it. The caller holds the lock.
func (m *Membership) abandon(partition uint32) {
	running := m.running[partition]
	if running.isDone() {
		return
	}
	m.cancel(partition)
	if running.kind == pb.AckKind_READY {
		go m.free(partition, m.turns[partition])
	}
}

// cancel cancels the partition's task and forgets it: it may take a while to end, and if it is due again meanwhile, it has
// to begin anew. The caller holds the lock.
func (m *Membership) cancel(partition uint32) {
	m.running[partition].cancel()
	delete(m.running, partition)
}

// free frees what a Warm that was stopped has copied.
func (m *Membership) free(partition uint32, turn chan struct{}) {
	turn <- struct{}{}
	defer func() { <-turn }()
	m.mu.Lock()
	_, held := m.held[partition]
	m.mu.Unlock()
	// A later Warm may have ended first.
	if !held {
		m.service.Release(partition)
	}
}

// begin replaces the partition's task. The caller holds the lock.
func (m *Membership) begin(task *pb.Task) {
	kind, partition, handoff := report(task), task.GetId().GetPartition(), task.GetId().GetHandoff()
	if kind == pb.AckKind_ACK_UNSPECIFIED {
		return // a kind of a later version
	}
	if before := m.running[partition]; before != nil && !before.isDone() {
		if before.kind == kind && before.handoff == handoff {
			return // repeated after a reconnect
		}
		if before.kind != pb.AckKind_RELEASED {
			before.cancel()
		}
	}
	ctx, cancel := context.WithCancel(context.Background())
	running := &runningTask{kind, handoff, cancel, make(chan struct{})}
	m.running[partition] = running
	turn, ok := m.turns[partition]
	if !ok {
		turn = make(chan struct{}, 1)
		m.turns[partition] = turn
	}
	go func() {
		defer close(running.done)
		defer cancel()
		// A release is finished before the next task begins.
		select {
		case turn <- struct{}{}:
			defer func() { <-turn }()
			m.do(ctx, kind, task)
		case <-ctx.Done():
		}
	}()
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
		m.ack(&pb.Ack{Id: task.GetId(), Kind: kind, Failure: err.Error()})
		sleep(ctx, time.Second)
	}
}

// call runs the callback of a task. It returns the name of a checkpoint.
func (m *Membership) call(ctx context.Context, kind pb.AckKind, task *pb.Task) (string, error) {
	partition := task.GetId().GetPartition()
	m.mu.Lock()
	held := m.held[partition]
	if kind == pb.AckKind_DRAINED || kind == pb.AckKind_RELEASED {
		m.until(ctx, func() bool { return m.inFlight[partition] == 0 })
	}
	if kind == pb.AckKind_RELEASED && ctx.Err() == nil {
		// A Warm of the stream before may have ended since this stream began: that is the state of a later epoch.
		if epoch := task.GetEpoch(); 0 < epoch && epoch < m.held[partition] {
			m.mu.Unlock()
			return "", nil
		}
		delete(m.held, partition)
	}
	m.mu.Unlock()
	switch {
	case ctx.Err() != nil:
		return "", ctx.Err()
	case kind == pb.AckKind_READY && held != task.GetEpoch():
		checkpoint := string(task.GetWarm().GetCheckpoint())
		if err := m.service.Warm(ctx, partition, task.GetEpoch(), checkpoint); err != nil {
			return "", err
		}
		m.mu.Lock()
		defer m.mu.Unlock()
		// A task that was cancelled meanwhile may belong to an earlier life.
		if ctx.Err() == nil {
			m.held[partition] = task.GetEpoch()
		}
	case kind == pb.AckKind_SYNCED:
		return "", m.service.Sync(ctx, partition)
	case kind == pb.AckKind_DRAINED:
		return "", m.service.Drain(ctx, partition)
	case kind == pb.AckKind_RELEASED:
		m.service.Release(partition)
	case kind == pb.AckKind_CHECKPOINTED:
		return m.service.Checkpoint(ctx, partition, task.GetEpoch())
	}
	return "", nil
}

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

// Leave hands all partitions over while the pod serves requests. It returns whether none was left in time.
func (m *Membership) Leave(within time.Duration) bool {
	ctx, cancel := context.WithTimeout(context.Background(), within)
	defer cancel()
	m.mu.Lock()
	defer m.mu.Unlock()
	m.leaving = true
	for ctx.Err() == nil {
		if client := m.client; client != nil {
			request := &pb.LeaveRequest{Resume: m.resume}
			m.mu.Unlock()
			answer, err := client.Leave(ctx, request)
			m.mu.Lock()
			if err == nil {
				return answer.GetEmpty()
			}
			log.Printf("leaving: %v", err)
		}
		if m.left {
			// The stream learnt of the end before the response arrived.
			return len(m.owned) == 0
		}
		m.mu.Unlock()
		sleep(ctx, 100*time.Millisecond)
		m.mu.Lock()
	}
	return false
}

func sleep(ctx context.Context, span time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(span):
	}
}
