package pod

import (
	"context"
	"crypto/tls"
	"errors"
	"log"
	"os"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	pb "github.com/segue-proxy/segue/clients/go/internal/podspb"
)

// Settings are what a pod registers, and with whom.
type Settings struct {
	// Coordinators are tried in turn: host:port of coordinators, or of a sidecar's stream.
	Coordinators []string
	Keyspace     string
	// Name is unique in the keyspace.
	Name string
	// Address is where routers reach the pod, host:port.
	Address string
	// LeaseTTL is in whole seconds. Default: 15 s.
	LeaseTTL time.Duration
	// TokenFile has the token that the coordinators require. It is read for each call, because it may be replaced.
	TokenFile string
	// TLS encrypts the connections to the coordinators. Without it nothing is encrypted.
	TLS *tls.Config
	// WithoutFence takes the claim back that no accepted request takes effect after the lease. A service that does not ask
	// Owned.MayWrite before each write has to.
	WithoutFence bool
	// Weight, Zone and Version are what the placement of partitions goes by.
	Weight        float64
	Zone, Version string
}

var errSilent = errors.New("the coordinator is silent")

// Membership is a pod's part in a keyspace, through the gRPC service of Segue's coordinators or of its sidecar.
//
// Invariants:
//   - A request is accepted only at the epoch that the pod owns, and only while the lease clock runs.
//   - A request writes only in the life (the incarnation) that accepted it.
//   - The lease clock counts from when a confirmed heartbeat was sent, by a clock that counts suspended time.
//   - The token stays in this process. A restarted process is a new incarnation.
//   - No callback is called with the lock held.
type Membership struct {
	settings                  Settings
	callbacks                 Callbacks
	options                   []grpc.DialOption
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
	turns                     map[uint32]chan struct{} // by partition: closed once all its tasks so far have ended
	acks                      map[ackKey]*pb.Ack
	acksDue                   chan struct{}
	client                    pb.PodsClient
	isLeaving, hasLeft        bool
}

// New returns the part of a pod that is not registered yet.
func New(settings Settings, callbacks Callbacks) *Membership {
	if settings.LeaseTTL == 0 {
		settings.LeaseTTL = 15 * time.Second
	}
	options := []grpc.DialOption{grpc.WithInsecure()}
	if settings.TLS != nil {
		options = []grpc.DialOption{grpc.WithTransportCredentials(credentials.NewTLS(settings.TLS))}
	}
	if settings.TokenFile != "" {
		options = append(options, grpc.WithPerRPCCredentials(token{settings.TokenFile, settings.TLS != nil}))
	}
	return &Membership{
		settings: settings, callbacks: callbacks, options: options,
		changed: make(chan struct{}), owned: map[uint32]uint64{}, held: map[uint32]uint64{}, inFlight: map[uint32]int{},
		leaseTTL: settings.LeaseTTL, trust: settings.LeaseTTL * 2 / 3,
		running: map[uint32]*runningTask{}, turns: map[uint32]chan struct{}{},
		acks: map[ackKey]*pb.Ack{}, acksDue: make(chan struct{}, 1),
	}
}

// token is what the coordinators require, in a file.
type token struct {
	file     string
	needsTLS bool
}

func (t token) GetRequestMetadata(context.Context, ...string) (map[string]string, error) {
	content, err := os.ReadFile(t.file)
	if err != nil {
		return nil, err
	}
	return map[string]string{"authorization": "Bearer " + strings.TrimSpace(string(content))}, nil
}

func (t token) RequireTransportSecurity() bool { return t.needsTLS }

// Run registers the pod, and keeps a stream open to one of the coordinators until the pod has left or the context ends.
func (m *Membership) Run(ctx context.Context) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go m.sendAcks(ctx)
	for turn := 0; ctx.Err() == nil; turn++ {
		target := m.settings.Coordinators[turn%len(m.settings.Coordinators)]
		err := m.connect(ctx, target)
		log.Printf("stream to %s ended: %v", target, err)
		if m.ended(err) {
			return
		}
		sleep(ctx, 100*time.Millisecond)
	}
}

// ended takes the error with which a stream has ended. It returns whether the pod has left.
func (m *Membership) ended(err error) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if status.Code(err) == codes.NotFound {
		m.endLife()
		m.hasLeft = m.isLeaving
		m.notify()
	}
	return m.hasLeft
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
	go receive(ctx, stream, events, failed)
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
			if err := stream.Send(&pb.Heartbeat{Seq: seq, Seen: seen, Load: m.load()}); err != nil {
				beats = nil // the stream has ended: the reason follows the events that came before it
			}
		case err := <-failed:
			return err
		case <-ctx.Done():
			return errSilent
		}
	}
}

// receive hands the events of a stream over until it fails.
func receive(ctx context.Context, stream pb.Pods_RegisterClient, events chan<- *pb.Event, failed chan<- error) {
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
}

// load returns what the service reports of its partitions, if it reports anything.
func (m *Membership) load() *pb.Load {
	if m.callbacks.Keys == nil {
		return nil
	}
	return &pb.Load{Keys: m.callbacks.Keys()}
}

func (m *Membership) firstHeartbeat() *pb.Heartbeat {
	load := m.load()
	m.mu.Lock()
	defer m.mu.Unlock()
	first := &pb.Heartbeat{Seq: 1, Hello: m.hello(), Load: load}
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
	s := &m.settings
	hello := &pb.Hello{
		ProtocolMin: 1, ProtocolMax: 1, Keyspace: s.Keyspace, Pod: s.Name, Address: s.Address, Weight: s.Weight, Zone: s.Zone,
		Version: s.Version, LeaseTtl: durationpb.New(s.LeaseTTL), Resume: m.resume, Capabilities: []string{"drained", "released"},
		NothingToWarm: m.callbacks.Warm == nil,
	}
	for capability, is := range map[string]bool{
		"sync": m.callbacks.Sync != nil, "checkpoint": m.callbacks.Checkpoint != nil, "fence": !s.WithoutFence,
	} {
		if is {
			hello.Capabilities = append(hello.Capabilities, capability)
		}
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
		m.endLife()
	}
	m.resume, m.incarnation = welcome.GetResume(), welcome.GetIncarnation()
	m.trust, m.leaseTTL = welcome.GetTrust().AsDuration(), welcome.GetLeaseTtl().AsDuration()
	log.Printf("registered: incarnation %d, resumed: %t", m.incarnation, welcome.GetResumed())
}

// endLife ends what the registration had: nothing of it is owned, and its state is of no use to the next one. The caller holds the
// lock.
func (m *Membership) endLife() {
	m.fence()
	m.resume, m.acks = nil, map[ackKey]*pb.Ack{}
	for partition := range m.running {
		m.abandon(partition)
	}
	for partition := range m.held {
		delete(m.held, partition)
		m.free(partition)
	}
}

func (m *Membership) apply(event *pb.Event, sent map[uint64]time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if begun, ok := sent[event.GetConfirmed()]; ok {
		m.confirm(begun)
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
		m.stop(dropped)
	}
	for _, task := range event.GetTasks() {
		m.begin(task)
	}
	m.notify()
}

// Leave hands all partitions over while the service serves requests. It returns whether none was left in time.
func (m *Membership) Leave(within time.Duration) bool {
	ctx, cancel := context.WithTimeout(context.Background(), within)
	defer cancel()
	m.mu.Lock()
	defer m.mu.Unlock()
	m.isLeaving = true
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
		if m.hasLeft {
			return true // the stream learnt of the end before the response arrived
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
