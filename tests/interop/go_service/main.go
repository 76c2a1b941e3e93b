// A gRPC service made of grpc-go. Every method returns what it is sent, after the delay that the metadata ask for.
package main

import (
	"errors"
	"io"
	"log"
	"net"
	"os"
	"strconv"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
)

// Messages are bytes.
type raw struct{}

func (raw) Marshal(message interface{}) ([]byte, error) { return *message.(*[]byte), nil }

func (raw) Unmarshal(data []byte, message interface{}) error {
	*message.(*[]byte) = append([]byte(nil), data...)
	return nil
}

func (raw) String() string { return "raw" }

func echo(_ interface{}, stream grpc.ServerStream) error {
	said, _ := metadata.FromIncomingContext(stream.Context())
	var delay time.Duration
	if given := said.Get("x-delay"); len(given) > 0 {
		seconds, err := strconv.ParseFloat(given[0], 64)
		if err != nil {
			return err
		}
		delay = time.Duration(seconds * float64(time.Second))
	}
	if err := stream.SendHeader(metadata.Pairs("x-name", os.Args[1])); err != nil {
		return err
	}
	for {
		var message []byte
		if err := stream.RecvMsg(&message); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
		time.Sleep(delay)
		if err := stream.SendMsg(&message); err != nil {
			return err
		}
	}
}

func main() {
	listener, err := net.Listen("tcp", "127.0.0.1:"+os.Args[2])
	if err != nil {
		log.Fatal(err)
	}
	//lint:ignore SA1019 Debian's grpc-go is older than ForceServerCodec.
	server := grpc.NewServer(grpc.CustomCodec(raw{}), grpc.UnknownServiceHandler(echo))
	log.Fatal(server.Serve(listener))
}
