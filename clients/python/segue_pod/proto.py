"""The messages and calls of `segue.v1.Pods`, made of the descriptors in `pods.binpb`.

That file is the published one of Segue's repository, where a test compares the two. No code is generated: generated code asks for a
protobuf and a grpcio that are not older than its generator. The descriptors have a pool of their own, so a service may have the
messages a second time.
"""

import pathlib
import types

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

_POOL = descriptor_pool.DescriptorPool()
for _file in descriptor_pb2.FileDescriptorSet.FromString(pathlib.Path(__file__).with_name("pods.binpb").read_bytes()).file:
    _POOL.Add(_file)
_FILE = _POOL.FindFileByName("segue/v1/pods.proto")

# Each message and each value of an enum, by name.
pb = types.SimpleNamespace(
    **{name: message_factory.GetMessageClass(message) for name, message in _FILE.message_types_by_name.items()},
    **{value.name: value.number for enum in _FILE.enum_types_by_name.values() for value in enum.values},
)


class PodsStub:
    """The calls of the service on a channel."""

    def __init__(self, channel):
        for call in _FILE.services_by_name["Pods"].methods:
            kind = channel.stream_stream if call.name == "Register" else channel.unary_unary
            request, response = (message_factory.GetMessageClass(it) for it in (call.input_type, call.output_type))
            path = f"/{call.containing_service.full_name}/{call.name}"
            setattr(self, call.name, kind(path, request_serializer=request.SerializeToString, response_deserializer=response.FromString))
