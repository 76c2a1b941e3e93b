package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"math/rand"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/segue-proxy/segue/clients/go/pod"
)

func clock(id int32) time.Duration {
	var now unix.Timespec
	if err := unix.ClockGettime(id, &now); err != nil {
		log.Fatalf("the clock %d cannot be read: %v", id, err)
	}
	return time.Duration(now.Nano())
}

// Record is a line of a partition's log.
type Record struct {
	Partition   uint32 `json:"partition"`
	Epoch       uint64 `json:"epoch"`
	Pod         string `json:"pod"`
	Incarnation uint64 `json:"incarnation"`
	Request     uint64 `json:"request"`
	Key         string `json:"key"`
	Sequence    uint64 `json:"sequence"`
	AcceptedAt  int64  `json:"accepted_at"`
	AppendedAt  int64  `json:"appended_at"`
	Value       string `json:"value"`
}

// Log has a file for each partition, a JSON object on each line, locked while it is written or read.
type Log struct{ folder string }

func (l Log) open(partition uint32, flags, lock int) (*os.File, error) {
	file, err := os.OpenFile(filepath.Join(l.folder, fmt.Sprintf("%d.log", partition)), flags, 0o644)
	if err != nil {
		return nil, err
	}
	for {
		err = unix.Flock(int(file.Fd()), lock)
		if !errors.Is(err, unix.EINTR) {
			break
		}
	}
	if err != nil {
		file.Close()
		return nil, err
	}
	return file, nil
}

// Append appends a record. It returns the offset after it.
func (l Log) Append(record *Record) (int64, error) {
	file, err := l.open(record.Partition, os.O_WRONLY|os.O_APPEND|os.O_CREATE, unix.LOCK_EX)
	if err != nil {
		return 0, err
	}
	defer file.Close()
	record.AppendedAt = int64(clock(unix.CLOCK_MONOTONIC))
	line, err := json.Marshal(record)
	if err != nil {
		return 0, err
	}
	// A single write: a process that dies leaves the whole record or nothing.
	if _, err := file.Write(append(line, '\n')); err != nil {
		return 0, err
	}
	return file.Seek(0, io.SeekEnd)
}

// Read returns the records from this offset on, and the offset after them.
func (l Log) Read(partition uint32, begin int64) ([]Record, int64, error) {
	file, err := l.open(partition, os.O_RDONLY, unix.LOCK_SH)
	if errors.Is(err, os.ErrNotExist) {
		return nil, 0, nil
	}
	if err != nil {
		return nil, 0, err
	}
	defer file.Close()
	if _, err := file.Seek(begin, io.SeekStart); err != nil {
		return nil, 0, err
	}
	data, err := io.ReadAll(file)
	if err != nil {
		return nil, 0, err
	}
	var records []Record
	for _, line := range bytes.Split(bytes.TrimSuffix(data, []byte("\n")), []byte("\n")) {
		if len(line) == 0 {
			continue
		}
		var record Record
		if err := json.Unmarshal(line, &record); err != nil {
			return nil, 0, err
		}
		records = append(records, record)
	}
	return records, begin + int64(len(data)), nil
}

type entry struct {
	highest uint64
	value   string
}

// MarshalJSON writes an entry as all pods do in a checkpoint: [highest, value].
func (e entry) MarshalJSON() ([]byte, error) { return json.Marshal([2]interface{}{e.highest, e.value}) }

// UnmarshalJSON reads an entry of a checkpoint.
func (e *entry) UnmarshalJSON(data []byte) error {
	return json.Unmarshal(data, &[2]interface{}{&e.highest, &e.value})
}

// State is the state of a partition: the content of its log up to an offset.
type State struct {
	mu      sync.Mutex
	entries map[string]entry
	readTo  int64
}

func (s *State) apply(records []Record, readTo int64) {
	for _, record := range records {
		highest := s.entries[record.Key].highest
		if record.Sequence > highest {
			highest = record.Sequence
		}
		s.entries[record.Key] = entry{highest, record.Value}
	}
	s.readTo = readTo
}

// Writer is the service: the last value of each key, in a log that all pods of the keyspace share. Each accepted write is
// appended without a comparison of epochs, so the log shows every mistake.
type Writer struct {
	name                  string
	log                   Log
	warmTime, serviceTime time.Duration
	mu                    sync.Mutex
	states                map[uint32]*State
}

// checkpoint is the content of a checkpoint's file, which is beside the logs.
type checkpoint struct {
	Entries map[string]entry `json:"entries"`
	ReadTo  int64            `json:"read_to"`
}

// Checkpoint writes the state to a file, and returns its name.
func (w *Writer) Checkpoint(_ context.Context, part pod.HandoffContext) (string, error) {
	state := w.state(part.Partition)
	if state == nil {
		return "", errors.New("no state of this partition")
	}
	state.mu.Lock()
	saved, err := json.Marshal(checkpoint{state.entries, state.readTo})
	state.mu.Unlock()
	if err != nil {
		return "", err
	}
	name := fmt.Sprintf("%d-%d.checkpoint", part.Partition, part.Epoch)
	path := filepath.Join(w.log.folder, name)
	if err := os.WriteFile(path+".new", saved, 0o644); err != nil {
		return "", err
	}
	// A reader sees the whole file or the one before.
	return name, os.Rename(path+".new", path)
}

// saved returns the state of a checkpoint, or none if there is no checkpoint.
func (w *Writer) saved(name string) (*State, error) {
	if name == "" {
		return &State{entries: map[string]entry{}}, nil
	}
	saved := checkpoint{Entries: map[string]entry{}}
	content, err := os.ReadFile(filepath.Join(w.log.folder, name))
	if err == nil {
		err = json.Unmarshal(content, &saved)
	}
	return &State{entries: saved.Entries, readTo: saved.ReadTo}, err
}

// Callbacks are those of a handoff. Nothing outlives a request here, so there is no Drain.
func (w *Writer) Callbacks() pod.Callbacks {
	return pod.Callbacks{Warm: w.Warm, Sync: w.Sync, Release: w.Release, Checkpoint: w.Checkpoint}
}

// Warm copies the state while the old owner still serves.
func (w *Writer) Warm(ctx context.Context, part pod.HandoffContext) error {
	state, err := w.saved(part.Checkpoint)
	if err != nil {
		return err
	}
	records, end, err := w.log.Read(part.Partition, state.readTo)
	if err != nil {
		return err
	}
	state.apply(records, end)
	select {
	case <-time.After(w.warmTime):
	case <-ctx.Done():
		return ctx.Err()
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.states[part.Partition] = state
	return nil
}

// Sync reads what the old owner has written since.
func (w *Writer) Sync(_ context.Context, part pod.HandoffContext) error {
	state := w.state(part.Partition)
	if state == nil {
		return errors.New("no state of this partition")
	}
	state.mu.Lock()
	defer state.mu.Unlock()
	records, end, err := w.log.Read(part.Partition, state.readTo)
	if err == nil {
		state.apply(records, end)
	}
	return err
}

// Release frees the state.
func (w *Writer) Release(part pod.HandoffContext) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.states, part.Partition)
}

func (w *Writer) state(partition uint32) *State {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.states[partition]
}

func (w *Writer) pause() {
	if w.serviceTime > 0 {
		time.Sleep(time.Duration(float64(w.serviceTime) / 2 * (0.5 + rand.Float64())))
	}
}

// ServeHTTP serves PUT and GET of /keys/{key}, as a router sends them, of partitions that the pod owns.
func (w *Writer) ServeHTTP(out http.ResponseWriter, request *http.Request) {
	owned := pod.FromContext(request.Context())
	acceptedAt := int64(clock(unix.CLOCK_MONOTONIC))
	state, key := w.state(owned.Partition), strings.TrimPrefix(request.URL.Path, "/keys/")
	if state == nil {
		http.Error(out, "no state of this partition", http.StatusInternalServerError)
		return
	}
	body, err := io.ReadAll(request.Body)
	if err != nil {
		return // the router has broken the exchange
	}
	w.pause()
	value, sequence := "", uint64(0)
	if request.Method == http.MethodGet {
		state.mu.Lock()
		value, sequence = state.entries[key].value, state.entries[key].highest
		state.mu.Unlock()
	} else {
		number, err := strconv.ParseUint(request.Header.Get("x-request-id"), 10, 64)
		sent, err2 := strconv.ParseUint(request.Header.Get("x-sequence"), 10, 64)
		if err != nil || err2 != nil {
			http.Error(out, "a write has x-request-id and x-sequence", http.StatusBadRequest)
			return
		}
		record := Record{
			Partition: owned.Partition, Epoch: owned.Epoch, Pod: w.name, Incarnation: owned.Incarnation, Request: number, Key: key,
			Sequence: sent, AcceptedAt: acceptedAt, Value: string(body),
		}
		if err := w.append(state, &record, owned.MayWrite); err != nil {
			if err == errLeaseLost {
				out.Header().Set("segue-reason", "lease-lost")
			}
			http.Error(out, err.Error(), http.StatusInternalServerError)
			return
		}
		sequence = sent
		w.pause()
	}
	out.Header().Set("x-writer", w.name)
	out.Header().Set("x-epoch", strconv.FormatUint(owned.Epoch, 10))
	out.Header().Set("x-sequence", strconv.FormatUint(sequence, 10))
	io.WriteString(out, value)
}

var errLeaseLost = errors.New("the lease ended")

// append appends a record, with the state locked so that it changes in the order of the log.
func (w *Writer) append(state *State, record *Record, mayWrite func() bool) error {
	state.mu.Lock()
	defer state.mu.Unlock()
	if !mayWrite() {
		return errLeaseLost
	}
	end, err := w.log.Append(record)
	if err != nil {
		return err
	}
	state.apply([]Record{*record}, end)
	if !mayWrite() {
		// The next owner may not have seen the record.
		return errLeaseLost
	}
	return nil
}
