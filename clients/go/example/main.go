// A counter for each partition, in a folder that all pods share: example COORDINATOR KEYSPACE NAME ADDRESS FOLDER.
// `curl -X POST -H 'x-partition: 7' 127.0.0.1:8080` counts, through a router.
package main

import (
	"context"
	"errors"
	"io"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"
	"time"

	"github.com/segue-proxy/segue/clients/go/pod"
)

var (
	mu     sync.Mutex
	counts = map[uint32]int{}
)

func file(partition uint32) string { return filepath.Join(os.Args[5], strconv.Itoa(int(partition))) }

func read(_ context.Context, part pod.HandoffContext) error {
	mu.Lock()
	defer mu.Unlock()
	text, err := os.ReadFile(file(part.Partition))
	counts[part.Partition], _ = strconv.Atoi(string(text))
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	return err
}

func release(part pod.HandoffContext) {
	mu.Lock()
	defer mu.Unlock()
	delete(counts, part.Partition)
}

func count(out http.ResponseWriter, request *http.Request) {
	owned := pod.FromContext(request.Context()) // other requests have got 421
	mu.Lock()
	defer mu.Unlock()
	next := strconv.Itoa(counts[owned.Partition] + 1)
	if !owned.MayWrite() {
		return // the response becomes a 500
	}
	written := os.WriteFile(file(owned.Partition)+".new", []byte(next), 0o644)
	if written != nil || os.Rename(file(owned.Partition)+".new", file(owned.Partition)) != nil {
		http.Error(out, "the counter cannot be written", http.StatusInternalServerError)
		return
	}
	counts[owned.Partition]++
	io.WriteString(out, next)
}

func main() {
	membership := pod.New(pod.Settings{
		Coordinators: os.Args[1:2], Keyspace: os.Args[2], Name: os.Args[3], Address: os.Args[4],
	}, pod.Callbacks{
		Warm:    read,                                                           // the old owner, if there is one, still counts
		Sync:    read,                                                           // it has stopped
		Leaving: func(pod.HandoffContext) {},                                    // no response goes on that would have to be ended
		Drain:   func(context.Context, pod.HandoffContext) error { return nil }, // nothing is written after its request
		Release: release,
	})
	go http.ListenAndServe(os.Args[4], membership.Handler(http.HandlerFunc(count)))
	go membership.Run(context.Background())
	asked, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	<-asked.Done()
	membership.Leave(time.Minute)
}
