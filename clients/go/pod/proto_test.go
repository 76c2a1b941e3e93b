package pod

import (
	"os"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/types/descriptorpb"

	pb "github.com/segue-proxy/segue/clients/go/internal/podspb"
)

// A change of pods.proto is published in pods.binpb. Then ./generate makes the code of podspb anew.
func TestTheGeneratedCodeIsThatOfThePublishedProto(t *testing.T) {
	bytes, err := os.ReadFile("../../../coordination/proto/segue/v1/pods.binpb")
	if err != nil {
		t.Fatal(err)
	}
	var published descriptorpb.FileDescriptorSet
	if err := proto.Unmarshal(bytes, &published); err != nil {
		t.Fatal(err)
	}
	generated := protodesc.ToFileDescriptorProto(pb.File_segue_v1_pods_proto)
	isCurrent := false
	for _, file := range published.File {
		isCurrent = isCurrent || proto.Equal(file, generated)
	}
	if !isCurrent {
		t.Error("clients/go/generate was not run after the last change of pods.proto")
	}
	methods := map[string]bool{}
	server := grpc.NewServer()
	pb.RegisterPodsServer(server, pb.UnimplementedPodsServer{})
	for _, method := range server.GetServiceInfo()["segue.v1.Pods"].Methods {
		methods[method.Name] = true
	}
	for _, method := range generated.Service[0].Method {
		if !methods[method.GetName()] {
			t.Errorf("the generated client lacks %s", method.GetName())
		}
	}
}
