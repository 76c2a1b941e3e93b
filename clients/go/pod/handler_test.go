package pod

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"io"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"

	pb "github.com/segue-proxy/segue/clients/go/internal/podspb"
)

// owning returns a membership that owns partition 0 at epoch 5, with a lease that lasts.
func owning() *Membership {
	m := with(Callbacks{})
	m.owned[0], m.incarnation = 5, 7
	m.trust, m.leaseTTL = time.Minute, 90*time.Second
	m.confirm(leaseNow())
	return m
}

func stamped(partition, epoch, keyspace string) *http.Request {
	request := httptest.NewRequest(http.MethodPut, "/", strings.NewReader("body"))
	request.Header.Set("segue-partition", partition)
	request.Header.Set("segue-epoch", epoch)
	request.Header.Set("segue-keyspace", keyspace)
	return request
}

func ask(m *Membership, request *http.Request, service http.HandlerFunc) *httptest.ResponseRecorder {
	response := httptest.NewRecorder()
	m.Handler(service).ServeHTTP(response, request)
	return response
}

func TestOnlyARequestOfTheEpochThePartitionAndTheKeyspaceReachesTheService(t *testing.T) {
	m := owning()
	response := ask(m, stamped("0", "5", "default"), func(out http.ResponseWriter, request *http.Request) {
		owned := FromContext(request.Context())
		if owned.Partition != 0 || owned.Epoch != 5 || owned.Incarnation != 7 || !owned.MayWrite() {
			t.Errorf("the service gets %v", owned)
		}
		if m.inFlight[0] != 1 {
			t.Error("the request is not in flight")
		}
		io.WriteString(out, "hello")
	})
	if response.Code != 200 || response.Body.String() != "hello" || m.inFlight[0] != 0 {
		t.Errorf("the response is %v, %d requests are in flight", response, m.inFlight[0])
	}
	doubled, absent := stamped("0", "5", "default"), stamped("0", "5", "default")
	doubled.Header.Add("segue-epoch", "5")
	absent.Header.Del("segue-keyspace")
	for name, wrong := range map[string]*http.Request{
		"an earlier epoch": stamped("0", "4", "default"), "a later epoch": stamped("0", "6", "default"),
		"another partition": stamped("1", "5", "default"), "another keyspace": stamped("0", "5", "other"),
		"no number": stamped("0", "+5", "default"), "two epochs": doubled, "no keyspace": absent,
	} {
		response := ask(m, wrong, func(http.ResponseWriter, *http.Request) { t.Errorf("%s: the service is called", name) })
		if response.Code != 421 || response.Header().Get("segue-misdirected") != "1" {
			t.Errorf("%s: the response is %v", name, response)
		}
	}
}

func TestA421OfTheServiceIsMarkedAsItsOwnUnlessItHasAMark(t *testing.T) {
	for given, expected := range map[string]string{"": "0", "1": "1"} {
		response := ask(owning(), stamped("0", "5", "default"), func(out http.ResponseWriter, _ *http.Request) {
			if given != "" {
				out.Header().Set("segue-misdirected", given)
			}
			out.WriteHeader(421)
		})
		if mark := response.Header().Get("segue-misdirected"); mark != expected {
			t.Errorf("the mark is %q, not %q", mark, expected)
		}
	}
}

func TestAResponseThatBeginsAfterTheLeaseHasEndedIsReplaced(t *testing.T) {
	for name, respond := range map[string]http.HandlerFunc{
		"with a body": func(out http.ResponseWriter, _ *http.Request) { io.WriteString(out, "hello") },
		"without":     func(http.ResponseWriter, *http.Request) {},
	} {
		m := owning()
		response := ask(m, stamped("0", "5", "default"), func(out http.ResponseWriter, request *http.Request) {
			m.mu.Lock()
			m.fence()
			m.mu.Unlock()
			if FromContext(request.Context()).MayWrite() {
				t.Errorf("%s: the request may write", name)
			}
			out.Header().Set("x-own", "1")
			respond(out, request)
		})
		header := response.Header()
		if response.Code != 500 || header.Get("segue-reason") != "lease-lost" || header.Get("x-own") != "" || response.Body.Len() != 0 {
			t.Errorf("%s: the response is %v", name, response)
		}
	}
}

func TestARequestOfAnEarlierLifeMayNotWrite(t *testing.T) {
	m := owning()
	owned := m.Enter(context.Background(), 0, 5)
	m.incarnation = 8
	if owned.MayWrite() || !m.Enter(context.Background(), 0, 5).MayWrite() {
		t.Error("a request of the earlier life may write, or one of the present life may not")
	}
}

func TestAPodStopsAcceptingBeforeItStopsWritingAndBothBeforeTheLeaseEnds(t *testing.T) {
	m := owning()
	owned := m.Enter(context.Background(), 0, 5)
	for _, at := range []struct {
		ago             time.Duration
		accepts, writes bool
	}{{59, true, true}, {61, false, true}, {74, false, true}, {76, false, false}} {
		m.confirm(leaseNow() - at.ago*time.Second)
		if accepts := m.Enter(context.Background(), 0, 5) != nil; accepts != at.accepts || owned.MayWrite() != at.writes {
			t.Errorf("%d s after the heartbeat: accepts %t, may write %t", at.ago, accepts, owned.MayWrite())
		}
	}
}

// coordinator notes what each stream presents.
type coordinator struct {
	pb.UnimplementedPodsServer
	presented chan string
}

func (c coordinator) Register(stream pb.Pods_RegisterServer) error {
	values, _ := metadata.FromIncomingContext(stream.Context())
	c.presented <- strings.Join(values.Get("authorization"), ",")
	return nil
}

func TestAPodWithTLSRegistersWithTheTokenThatItsFileHasThen(t *testing.T) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
	}
	certificate, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	pair := tls.Certificate{Certificate: [][]byte{certificate}, PrivateKey: key}
	server := grpc.NewServer(grpc.Creds(credentials.NewServerTLSFromCert(&pair)))
	known := coordinator{presented: make(chan string)}
	pb.RegisterPodsServer(server, known)
	go server.Serve(listener)
	defer server.Stop()

	file := filepath.Join(t.TempDir(), "token")
	parsed, _ := x509.ParseCertificate(certificate)
	roots := x509.NewCertPool()
	roots.AddCert(parsed)
	settings := Settings{Coordinators: []string{listener.Addr().String()}, TokenFile: file, TLS: &tls.Config{RootCAs: roots}}
	write := func(token string) {
		if err := os.WriteFile(file, bytes.NewBufferString(token).Bytes(), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("one\n")
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go New(settings, Callbacks{}).Run(ctx)
	for _, token := range []string{"one", "two"} {
		write(token + "\n")
		// Calls that read the file before it was written may come first.
		for presented := ""; presented != "Bearer "+token; {
			select {
			case presented = <-known.presented:
			case <-time.After(patience):
				t.Fatalf("nobody presents %q; the last was %q", token, presented)
			}
		}
	}
}
