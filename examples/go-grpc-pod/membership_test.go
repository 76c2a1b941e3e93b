// Tests of a membership without a coordinator: `examples/go-grpc-pod/with-stubs go test .`

package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"reflect"
	"sort"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/durationpb"

	pb "segue/podspb"
)

// patience is how long a test waits for what has to happen.
const patience = 30 * time.Second

// fake is a service whose Warm goes on until it is cancelled, and then until it may end.
type fake struct {
	calls  chan string
	mayEnd chan struct{}
}

func (f *fake) note(call string, partition uint32) { f.calls <- fmt.Sprintf("%s %d", call, partition) }

func (f *fake) Warm(ctx context.Context, partition uint32, _ uint64, _ string) error {
	f.note("warm", partition)
	<-ctx.Done()
	<-f.mayEnd
	f.note("warm ended", partition)
	return ctx.Err()
}

func (f *fake) Sync(context.Context, uint32) error  { return nil }
func (f *fake) Drain(context.Context, uint32) error { return nil }
func (f *fake) Release(partition uint32)            { f.note("release", partition) }
func (f *fake) Checkpoint(ctx context.Context, partition uint32, _ uint64) (string, error) {
	f.note("checkpoint", partition)
	<-ctx.Done()
	return "", ctx.Err()
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
	return NewMembership([]string{"127.0.0.1:1"}, "", "default", "a", "127.0.0.1:2", 10*time.Second, service), service
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
			// What the first Warm has copied may be freed before the second one begins.
			if call := service.next(t, 1); call[0] == "release 7" {
				service.expect(t, "warm 7")
			} else if call[0] != "warm 7" {
				t.Fatalf("%v after the stopped Warm has ended", call)
			}
		})
	}
}

func TestADroppedReleaseIsFinished(t *testing.T) {
	m, service := start()
	m.inFlight[5] = 1
	release := &pb.Task{Id: id(5, 9), Epoch: 9, Kind: &pb.Task_Release{Release: &pb.Release{}}}
	m.apply(&pb.Event{Tasks: []*pb.Task{release}}, nil)
	m.apply(&pb.Event{Dropped: []*pb.TaskId{id(5, 9)}}, nil)
	m.Exit(5)
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
	m.coordinators = []string{hung.Addr().String(), other.Addr().String()}
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
