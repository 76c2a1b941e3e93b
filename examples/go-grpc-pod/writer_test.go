// Tests of the service behind its membership.

package main

import (
	"fmt"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// patience is how long a test waits for what has to happen.
const patience = 30 * time.Second

// untilALockIsAwaited waits until this process waits for the lock of a file.
func untilALockIsAwaited(t *testing.T) {
	t.Helper()
	waiter := fmt.Sprintf(" %d ", os.Getpid())
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); time.Sleep(time.Millisecond) {
		locks, err := os.ReadFile("/proc/locks")
		if err != nil {
			t.Fatal(err)
		}
		for _, line := range strings.Split(string(locks), "\n") {
			if strings.Contains(line, "->") && strings.Contains(line, waiter) {
				return
			}
		}
	}
	t.Fatal("nobody waits for the lock")
}

func TestAWriteThatIsAppendedAfterTheLeaseHasEndedIsNotConfirmed(t *testing.T) {
	writer := &Writer{log: Log{t.TempDir()}}
	locked, err := writer.log.open(0, os.O_RDWR|os.O_CREATE, unix.LOCK_EX)
	if err != nil {
		t.Fatal(err)
	}
	var isLost atomic.Bool
	confirmed := make(chan error)
	go func() {
		state := &State{entries: map[string]entry{}}
		confirmed <- writer.append(state, &Record{Key: "k", Value: "v"}, func() bool { return !isLost.Load() })
	}()
	untilALockIsAwaited(t)
	isLost.Store(true)
	locked.Close()
	if err := <-confirmed; err != errLeaseLost {
		t.Errorf("the write ends with %v", err)
	}
	if records, _, err := writer.log.Read(0, 0); err != nil || len(records) != 1 {
		t.Errorf("the log has %v, %v", records, err)
	}
}
