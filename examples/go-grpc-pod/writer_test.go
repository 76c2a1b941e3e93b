// Tests of the service behind its membership.

package main

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

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
	m, _ := start()
	m.owned[0], m.trustedUntil, m.standsUntil = 1, leaseNow()+time.Minute, leaseNow()+time.Minute
	writer := &Writer{log: Log{t.TempDir()}, states: map[uint32]*State{0: {entries: map[string]entry{}}}}
	locked, err := writer.log.open(0, os.O_RDWR|os.O_CREATE, unix.LOCK_EX)
	if err != nil {
		t.Fatal(err)
	}
	request := httptest.NewRequest(http.MethodPut, "/keys/k", strings.NewReader("v"))
	for name, value := range map[string]string{
		"segue-partition": "0", "segue-epoch": "1", "segue-keyspace": "default", "x-request-id": "1", "x-sequence": "1",
	} {
		request.Header.Set(name, value)
	}
	response, done := httptest.NewRecorder(), make(chan struct{})
	go func() {
		writer.Handler(m)(response, request)
		close(done)
	}()
	untilALockIsAwaited(t)
	m.mu.Lock()
	m.fence()
	m.mu.Unlock()
	locked.Close()
	<-done
	if reason := response.Header().Get("segue-reason"); response.Code != 500 || reason != "lease-lost" {
		t.Errorf("the response is %d, reason %q", response.Code, reason)
	}
	if records, _, err := writer.log.Read(0, 0); err != nil || len(records) != 1 {
		t.Errorf("the log has %v, %v", records, err)
	}
}
