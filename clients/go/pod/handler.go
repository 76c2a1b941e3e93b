package pod

import (
	"bufio"
	"context"
	"errors"
	"net"
	"net/http"
	"strconv"
)

// misdirected says of a 421 whether the request was left undone ("1"), or the service itself has answered ("0").
const misdirected = "segue-misdirected"

var errLeaseLost = errors.New("the lease of the request's partition has ended")

type ownedKey struct{}

// FromContext returns the [Owned] of a request that [Membership.Handler] has admitted, otherwise nil.
func FromContext(ctx context.Context) *Owned {
	owned, _ := ctx.Value(ownedKey{}).(*Owned)
	return owned
}

// Handler admits requests to a service: those of partitions that the pod owns. Every other one gets 421 before its body is read. A
// response that begins after the lease has ended is replaced by 500: its request may have written what the next owner has not seen.
func (m *Membership) Handler(service http.Handler) http.Handler {
	return http.HandlerFunc(func(out http.ResponseWriter, request *http.Request) {
		var owned *Owned
		if partition, epoch, ok := m.stamps(request.Header); ok {
			owned = m.Enter(request.Context(), partition, epoch)
		}
		if owned == nil {
			out.Header().Set(misdirected, "1")
			out.WriteHeader(http.StatusMisdirectedRequest)
			return
		}
		defer owned.Exit()
		guarded := &guardedWriter{ResponseWriter: out, owned: owned}
		service.ServeHTTP(guarded, request.WithContext(context.WithValue(request.Context(), ownedKey{}, owned)))
		if !guarded.hasBegun {
			guarded.WriteHeader(http.StatusOK)
		}
	})
}

// stamps returns the partition and the epoch that a router has put on a request of this keyspace.
func (m *Membership) stamps(header http.Header) (uint32, uint64, bool) {
	once := func(name string) string {
		if values := header.Values(name); len(values) == 1 {
			return values[0]
		}
		return ""
	}
	partition, err := strconv.ParseUint(once("segue-partition"), 10, 32)
	epoch, err2 := strconv.ParseUint(once("segue-epoch"), 10, 64)
	return uint32(partition), epoch, err == nil && err2 == nil && once("segue-keyspace") == m.settings.Keyspace
}

// guardedWriter writes the response to an admitted request.
type guardedWriter struct {
	http.ResponseWriter
	owned            *Owned
	hasBegun, isLost bool
}

func (w *guardedWriter) WriteHeader(status int) {
	if w.hasBegun || status < 200 && status != http.StatusSwitchingProtocols {
		w.ResponseWriter.WriteHeader(status)
		return
	}
	w.hasBegun, w.isLost = true, !w.owned.MayWrite()
	header := w.Header()
	if w.isLost {
		for name := range header {
			delete(header, name)
		}
		header.Set("segue-reason", "lease-lost")
		status = http.StatusInternalServerError
	} else if status == http.StatusMisdirectedRequest && len(header.Values(misdirected)) == 0 {
		// The service's own, which is meant for the client.
		header.Set(misdirected, "0")
	}
	w.ResponseWriter.WriteHeader(status)
}

func (w *guardedWriter) Write(body []byte) (int, error) {
	if !w.hasBegun {
		w.WriteHeader(http.StatusOK)
	}
	if w.isLost {
		return 0, errLeaseLost
	}
	return w.ResponseWriter.Write(body)
}

func (w *guardedWriter) Flush() {
	if !w.hasBegun {
		w.WriteHeader(http.StatusOK)
	}
	if flusher, ok := w.ResponseWriter.(http.Flusher); ok {
		flusher.Flush()
	}
}

// Hijack hands the connection over, for WebSockets.
func (w *guardedWriter) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	hijacker, ok := w.ResponseWriter.(http.Hijacker)
	if !ok {
		return nil, nil, errors.New("the connection of this request cannot be taken over")
	}
	if !w.owned.MayWrite() {
		return nil, nil, errLeaseLost
	}
	w.hasBegun = true
	return hijacker.Hijack()
}

// Unwrap is what http.ResponseController asks for.
func (w *guardedWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }
