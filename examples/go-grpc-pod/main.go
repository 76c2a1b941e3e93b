// A writer pod in Go that takes part by gRPC: the module clients/go in front of the service in writer.go.
package main

import (
	"context"
	"flag"
	"log"
	"net"
	"net/http"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/segue-proxy/segue/clients/go/pod"
)

func main() {
	coordinators := flag.String("coordinator", "127.0.0.1:7070", "host:port; several, separated by commas, are tried in turn")
	tokenFile := flag.String("token-file", "", "file of the token that the coordinators require")
	keyspace := flag.String("keyspace", "default", "the keyspace")
	name := flag.String("name", "", "unique in the keyspace")
	listen := flag.String("listen", "127.0.0.1:8181", "where routers reach it, host:port")
	folder := flag.String("log-dir", "", "the logs that all writers of the keyspace share")
	ttl := flag.Duration("lease-ttl", 15*time.Second, "whole seconds")
	warmTime := flag.Duration("warm-time", 0, "in addition to reading the log")
	serviceTime := flag.Duration("service-time", 0, "for each request")
	flag.Parse()
	log.SetFlags(log.LstdFlags | log.Lmicroseconds)
	if *name == "" || *folder == "" {
		log.Fatal("--name and --log-dir are missing")
	}
	if err := os.MkdirAll(*folder, 0o755); err != nil {
		log.Fatal(err)
	}

	writer := &Writer{
		name: *name, log: Log{*folder}, warmTime: *warmTime, serviceTime: *serviceTime, states: map[uint32]*State{},
	}
	membership := pod.New(pod.Settings{
		Coordinators: strings.Split(*coordinators, ","), TokenFile: *tokenFile, Keyspace: *keyspace, Name: *name, Address: *listen,
		LeaseTTL: *ttl,
	}, writer.Callbacks())
	listener, err := net.Listen("tcp", *listen)
	if err != nil {
		log.Fatal(err)
	}
	go func() { log.Fatal(http.Serve(listener, membership.Handler(writer))) }()
	go membership.Run(context.Background())

	asked, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	<-asked.Done()
	log.Print("handing over")
	empty := membership.Leave(60 * time.Second)
	log.Printf("ended; everything handed over: %t", empty)
	if !empty {
		os.Exit(1)
	}
}
