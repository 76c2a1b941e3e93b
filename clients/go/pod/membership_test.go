// Tests of a membership without a coordinator: `scripts/debian-go clients/go test ./...`

package pod

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"reflect"
	"sort"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	pb "github.com/segue-proxy/segue/clients/go/internal/podspb"
)

// patience is how long a test waits for what has to happen.
const patience = 30 * time.Second

// fake is a service whose Warm goes on until it is cancelled, and then until it may end.
type fake struct {
	calls  chan string
	mayEnd chan struct{}
}

func (f *fake) note(call string, partition uint32) { f.calls <- fmt.Sprintf("%s %d", call, partition) }

func (f *fake) callbacks() Callbacks {
	return Callbacks{
		Warm: func(ctx context.Context, part HandoffContext) error {
			f.note("warm", part.Partition)
			<-ctx.Done()
			<-f.mayEnd
			f.note("warm ended", part.Partition)
			return ctx.Err()
		},
		Release: func(part HandoffContext) { f.note("release", part.Partition) },
		Checkpoint: func(ctx context.Context, part HandoffContext) (string, error) {
			f.note("checkpoint", part.Partition)
			<-ctx.Done()
			return "", ctx.Err()
		},
	}
}

// next returns the next calls, sorted.
func (f *fake) next(t *testing.T, count int) []string {
	t.Helper()
	var calls []string
	for len(calls) < count {
		select {
		case call := <-f.calls:
			calls = append(calls, call)
		case <-time.After(patience):
			t.Fatalf("no further call after %v", calls)
		}
	}
	sort.Strings(calls)
	return calls
}

func (f *fake) expect(t *testing.T, calls ...string) {
	t.Helper()
	if got := f.next(t, len(calls)); !reflect.DeepEqual(got, calls) {
		t.Fatalf("the service was called %v, not %v", got, calls)
	}
}

func start() (*Membership, *fake) {
	service := &fake{calls: make(chan string, 100), mayEnd: make(chan struct{})}
	return with(service.callbacks()), service
}

func with(callbacks Callbacks) *Membership {
	settings := Settings{Coordinators: []string{"127.0.0.1:1"}, Keyspace: "default", Name: "a", Address: "127.0.0.1:2"}
	return New(settings, callbacks)
}

func id(partition uint32, handoff uint64) *pb.TaskId {
	return &pb.TaskId{Partition: partition, Handoff: handoff}
}

func warm(partition uint32, handoff uint64) *pb.Task {
	return &pb.Task{Id: id(partition, handoff), Epoch: handoff, Kind: &pb.Task_Warm{Warm: &pb.Warm{}}}
}

// resumed is the first event of a stream that goes on.
func resumed(tasks ...*pb.Task) *pb.Event {
	return &pb.Event{Welcome: &pb.Welcome{Resumed: true}, Tasks: tasks}
}

func (m *Membership) runs() []uint32 {
	m.mu.Lock()
	defer m.mu.Unlock()
	partitions := []uint32{}
	for partition, running := range m.running {
		if !running.isDone() {
			partitions = append(partitions, partition)
		}
	}
	sort.Slice(partitions, func(i, j int) bool { return partitions[i] < partitions[j] })
	return partitions
}

func TestAStreamStopsWhatItsFirstEventDoesNotListAndFreesWhatAWarmHasCopied(t *testing.T) {
	m, service := start()
	close(service.mayEnd)
	m.inFlight[3], m.inFlight[5] = 1, 1
	drain := &pb.Task{Id: id(3, 13), Epoch: 13, Kind: &pb.Task_Drain{Drain: &pb.Drain{}}}
	checkpoint := &pb.Task{Id: id(4, 0), Epoch: 1, Kind: &pb.Task_Checkpoint{Checkpoint: &pb.Checkpoint{}}}
	release := &pb.Task{Id: id(5, 9), Epoch: 9, Kind: &pb.Task_Release{Release: &pb.Release{}}}
	m.apply(resumed(warm(1, 11), warm(2, 12), drain, checkpoint, release), nil)
	service.expect(t, "checkpoint 4", "warm 1", "warm 2")

	m.apply(resumed(warm(1, 11)), nil)
	service.expect(t, "release 2", "warm ended 2")
	if got := m.runs(); !reflect.DeepEqual(got, []uint32{1, 4, 5}) {
		t.Fatalf("tasks of the partitions %v run", got)
	}
	if progress := m.firstHeartbeat().GetProgress(); len(progress) != 1 || progress[0].GetId().GetHandoff() != 11 {
		t.Fatalf("the first heartbeat reports %v", progress)
	}

	m.welcome(&pb.Welcome{})
	service.expect(t, "release 1", "warm ended 1")
	if got := m.runs(); len(got) != 0 {
		t.Fatalf("tasks of the partitions %v run in a new life", got)
	}
}

func TestAStoppedWarmThatIsDueAgainBeforeItHasEndedBeginsAnewAfterwards(t *testing.T) {
	for name, stop := range map[string]*pb.Event{
		"dropped":    {Dropped: []*pb.TaskId{id(7, 11)}},
		"not listed": resumed(),
	} {
		t.Run(name, func(t *testing.T) {
			m, service := start()
			m.apply(&pb.Event{Tasks: []*pb.Task{warm(7, 11)}}, nil)
			service.expect(t, "warm 7")
			m.apply(stop, nil)
			if progress := m.firstHeartbeat().GetProgress(); len(progress) != 0 {
				t.Errorf("a stopped Warm is reported: %v", progress)
			}
			m.apply(resumed(warm(7, 11)), nil)
			close(service.mayEnd)
			service.expect(t, "warm ended 7")
			if name == "not listed" {
				// What the first Warm has copied is freed before the second one begins.
				service.expect(t, "release 7")
			}
			service.expect(t, "warm 7")
		})
	}
}

func TestADroppedReleaseIsFinished(t *testing.T) {
	m, service := start()
	m.inFlight[5] = 1
	release := &pb.Task{Id: id(5, 9), Epoch: 9, Kind: &pb.Task_Release{Release: &pb.Release{}}}
	m.apply(&pb.Event{Tasks: []*pb.Task{release}}, nil)
	m.apply(&pb.Event{Dropped: []*pb.TaskId{id(5, 9)}}, nil)
	(&Owned{Partition: 5, membership: m}).Exit()
	service.expect(t, "release 5")
}

// endedStream is a stream that the coordinator ends: its last event comes after a heartbeat could not be sent any more.
type endedStream struct {
	pb.PodsClient
	pb.Pods_RegisterClient
	sent, received int
	failed         chan struct{}
}

func (s *endedStream) Register(context.Context, ...grpc.CallOption) (pb.Pods_RegisterClient, error) {
	return s, nil
}

func (s *endedStream) Send(*pb.Heartbeat) error {
	s.sent++
	if s.sent == 1 {
		return nil
	}
	if s.sent == 2 {
		close(s.failed)
	}
	return io.EOF
}

func (s *endedStream) Recv() (*pb.Event, error) {
	s.received++
	switch s.received {
	case 1:
		span := durationpb.New(time.Minute)
		every := durationpb.New(time.Millisecond)
		return &pb.Event{Welcome: &pb.Welcome{HeartbeatEvery: every, Trust: span, LeaseTtl: span}}, nil
	case 2:
		<-s.failed
		return &pb.Event{GoAway: &pb.GoAway{}}, nil
	}
	return nil, io.EOF
}

func TestAStreamThatEndsWhileAHeartbeatIsSentIsLeft(t *testing.T) {
	m, _ := start()
	left := make(chan error, 1)
	go func() { left <- m.follow(context.Background(), &endedStream{failed: make(chan struct{})}) }()
	select {
	case <-left:
	case <-time.After(patience):
		t.Fatal("the pod stays at a stream that has ended")
	}
}

func TestACoordinatorThatNeverRespondsIsLeftForTheNextOne(t *testing.T) {
	listen := func() *net.TCPListener {
		listener, err := net.ListenTCP("tcp", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)})
		if err != nil {
			t.Fatal(err)
		}
		return listener
	}
	// The kernel takes connections to the first one, and nobody accepts them.
	hung, other := listen(), listen()
	defer hung.Close()
	defer other.Close()
	m, _ := start()
	m.settings.Coordinators = []string{hung.Addr().String(), other.Addr().String()}
	m.leaseTTL, m.trust = 3*time.Second, 2*time.Second
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go m.Run(ctx)
	// Of itself, grpc-go waits for 20 s.
	if err := other.SetDeadline(time.Now().Add(10 * time.Second)); err != nil {
		t.Fatal(err)
	}
	if _, err := other.Accept(); err != nil {
		t.Fatalf("the pod stays at a coordinator that never responds: %v", err)
	}
}

// stream is a stream of the test, which hands events over and takes heartbeats.
type stream struct {
	pb.Pods_RegisterClient
	events chan *pb.Event
	hellos chan *pb.Hello
	end    error
}

func (s *stream) Send(heartbeat *pb.Heartbeat) error {
	if heartbeat.GetHello() != nil {
		s.hellos <- heartbeat.GetHello()
	}
	return nil
}

func (s *stream) Recv() (*pb.Event, error) {
	if event, ok := <-s.events; ok {
		return event, nil
	}
	return nil, s.end
}

type streams struct {
	pb.PodsClient
	next *stream
}

func (s streams) Register(context.Context, ...grpc.CallOption) (pb.Pods_RegisterClient, error) {
	return s.next, nil
}

// plays follows a stream with these events, which ends with this code. It returns the pod's hello and the stream's error.
func plays(m *Membership, code codes.Code, events ...*pb.Event) (*pb.Hello, error) {
	next := &stream{events: make(chan *pb.Event, len(events)), hellos: make(chan *pb.Hello, 1), end: status.Error(code, "the end")}
	for _, event := range events {
		next.events <- event
	}
	close(next.events)
	err := m.follow(context.Background(), streams{next: next})
	return <-next.hellos, err
}

func welcomed(incarnation uint64) *pb.Event {
	span := durationpb.New(time.Minute)
	welcome := &pb.Welcome{Incarnation: incarnation, Resume: []byte("secret"), HeartbeatEvery: span, Trust: span, LeaseTtl: span}
	return &pb.Event{Seq: 1, Confirmed: 1, Welcome: welcome}
}

func TestAStreamThatBreaksIsResumedAndARegistrationThatIsOverIsNot(t *testing.T) {
	m := with(Callbacks{})
	first := welcomed(7)
	first.Assignment = &pb.Assignment{Full: true, Owned: []*pb.Owned{{Partition: 0, Epoch: 5}}}
	if hello, err := plays(m, codes.Unavailable, first); hello.GetResume() != nil || status.Code(err) != codes.Unavailable {
		t.Fatalf("the first hello resumes %q, the stream ends with %v", hello.GetResume(), err)
	} else if !hello.GetNothingToWarm() {
		t.Fatal("a pod without Warm says that it has something to warm")
	}
	m.held[0] = 5
	resumed := welcomed(7)
	resumed.Welcome.Resumed = true
	hello, err := plays(m, codes.NotFound, resumed)
	if string(hello.GetResume()) != "secret" || len(hello.GetHoldings()) != 1 {
		t.Fatalf("the hello of a stream that goes on is %v", hello)
	}
	owned := m.Enter(context.Background(), 0, 5)
	if owned == nil || !owned.MayWrite() {
		t.Fatal("a pod whose stream has broken serves no more")
	}
	m.ended(err)
	if owned.MayWrite() || m.Enter(context.Background(), 0, 5) != nil {
		t.Fatal("a pod whose registration is over serves")
	}
	if hello, _ := plays(m, codes.Unavailable); len(hello.GetResume()) != 0 || len(hello.GetHoldings()) != 0 {
		t.Fatalf("the hello after the end is %v", hello)
	}
}

func TestAPodClaimsWhatItsServiceCan(t *testing.T) {
	claims := func(m *Membership) string {
		claimed := m.hello().GetCapabilities()
		sort.Strings(claimed)
		return strings.Join(claimed, " ")
	}
	if claimed := claims(with(Callbacks{})); claimed != "drained fence released" {
		t.Errorf("without callbacks: %s", claimed)
	}
	able := with(Callbacks{
		Sync:       func(context.Context, HandoffContext) error { return nil },
		Checkpoint: func(context.Context, HandoffContext) (string, error) { return "", nil },
	})
	able.settings.WithoutFence = true
	if claimed := claims(able); claimed != "checkpoint drained released sync" {
		t.Errorf("with callbacks, without a fence: %s", claimed)
	}
}

func TestCallbacksLearnWhatTheirTaskSays(t *testing.T) {
	parts := make(chan HandoffContext, 1)
	m := with(Callbacks{
		Warm:    func(_ context.Context, part HandoffContext) error { parts <- part; return nil },
		Leaving: func(part HandoffContext) { parts <- part },
		Sync:    func(_ context.Context, part HandoffContext) error { parts <- part; return nil },
		Drain:   func(_ context.Context, part HandoffContext) error { parts <- part; return nil },
		Release: func(part HandoffContext) { parts <- part },
	})
	sync := &pb.Task{Id: id(5, 9), Epoch: 9, Kind: &pb.Task_Sync{Sync: &pb.Sync{FromAddress: "a:2"}}}
	drain := &pb.Task{Id: id(6, 9), Epoch: 9, Kind: &pb.Task_Drain{Drain: &pb.Drain{ToAddress: "b:3"}}}
	release := &pb.Task{Id: id(7, 9), Epoch: 9, Kind: &pb.Task_Release{Release: &pb.Release{ToAddress: "b:4"}}}
	due := warm(3, 8)
	due.GetWarm().FromAddress, due.GetWarm().Checkpoint = "a:1", []byte("3@7")
	leaving := &pb.Task{Id: id(4, 9), Epoch: 9, Kind: &pb.Task_Leaving{Leaving: &pb.Leaving{ToAddress: "b:2"}}}
	for _, expected := range []struct {
		task *pb.Task
		part HandoffContext
	}{
		{due, HandoffContext{Partition: 3, Epoch: 8, FromAddress: "a:1", Checkpoint: "3@7"}},
		{leaving, HandoffContext{Partition: 4, Epoch: 9, ToAddress: "b:2"}},
		{sync, HandoffContext{Partition: 5, Epoch: 9, FromAddress: "a:2"}},
		{drain, HandoffContext{Partition: 6, Epoch: 9, ToAddress: "b:3"}},
		{release, HandoffContext{Partition: 7, Epoch: 9, ToAddress: "b:4"}},
	} {
		m.apply(&pb.Event{Tasks: []*pb.Task{expected.task}}, nil)
		if part := <-parts; part != expected.part {
			t.Errorf("the callback gets %v, not %v", part, expected.part)
		}
	}
}

func TestHeartbeatsReportTheKeysOfPartitions(t *testing.T) {
	m := with(Callbacks{Keys: func() map[uint32]uint64 { return map[uint32]uint64{3: 40} }})
	if keys := m.firstHeartbeat().GetLoad().GetKeys(); len(keys) != 1 || keys[3] != 40 {
		t.Errorf("the heartbeat reports %v", keys)
	}
	if load := with(Callbacks{}).firstHeartbeat().GetLoad(); load != nil {
		t.Errorf("a service without keys reports %v", load)
	}
}

func TestAFailureSaysWhetherItIsPermanent(t *testing.T) {
	for _, isPermanent := range []bool{false, true} {
		m := with(Callbacks{Warm: func(context.Context, HandoffContext) error {
			if isPermanent {
				return Permanent(errors.New("no disk"))
			}
			return errors.New("no disk")
		}})
		m.apply(&pb.Event{Tasks: []*pb.Task{warm(3, 8)}}, nil)
		<-m.acksDue
		ack := m.acks[ackKey{3, 8, pb.AckKind_READY}]
		if !strings.Contains(ack.GetFailure(), "no disk") || ack.GetPermanent() != isPermanent {
			t.Errorf("the acknowledgement is %v", ack)
		}
		m.apply(&pb.Event{Dropped: []*pb.TaskId{id(3, 8)}}, nil)
	}
}
