"""The messages of PersonHog's public service that this example has, by their published names and field numbers.

They are made when this module is imported, so no compiler of protobuf is needed. Fields that are missing here are kept and ignored.
"""

import types

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

SERVICE = "personhog.service.v1.PersonHogService"
HEALTH = "grpc.health.v1.Health"

MESSAGES = {
    "ReadOptions": {"consistency": (1, "int32")},
    "Person": {
        "id": (1, "int64"), "uuid": (2, "string"), "team_id": (3, "int64"), "properties": (4, "bytes"), "version": (8, "int64"),
    },
    "GetPersonRequest": {"team_id": (1, "int64"), "person_id": (2, "int64"), "read_options": (3, "ReadOptions")},
    "GetPersonResponse": {"person": (1, "Person")},
    "UpdatePersonPropertiesRequest": {
        "team_id": (1, "int64"), "person_id": (2, "int64"), "event_name": (3, "string"), "set_properties": (4, "bytes"),
    },
    "UpdatePersonPropertiesResponse": {"person": (1, "Person"), "updated": (2, "bool")},
    "Group": {"team_id": (2, "int64"), "group_type_index": (3, "int32"), "group_key": (4, "string"), "group_properties": (5, "bytes")},
    "GetGroupRequest": {
        "team_id": (1, "int64"), "group_type_index": (2, "int32"), "group_key": (3, "string"), "read_options": (4, "ReadOptions"),
    },
    "GetGroupResponse": {"group": (1, "Group")},
}


def classes(package):
    """Returns the classes of the messages by their names."""
    field, file = descriptor_pb2.FieldDescriptorProto, descriptor_pb2.FileDescriptorProto(syntax="proto3", package=package)
    file.name = "person_service.proto"
    for name, fields in MESSAGES.items():
        message = file.message_type.add(name=name)
        for named, (number, kind) in fields.items():
            added = message.field.add(name=named, number=number, label=field.LABEL_OPTIONAL)
            if kind in MESSAGES:
                added.type, added.type_name = field.TYPE_MESSAGE, f".{package}.{kind}"
            else:
                added.type = field.Type.Value(f"TYPE_{kind.upper()}")
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{package}.{name}")) for name in MESSAGES}


pb = types.SimpleNamespace(**classes("personhog.types.v1"))
# The methods of the service that are played here: their requests and responses.
METHODS = {name: (getattr(pb, f"{name}Request"), getattr(pb, f"{name}Response")) for name in ("GetPerson", "UpdatePersonProperties", "GetGroup")}
EVENTUAL, STRONG = 1, 2
# `HealthCheckResponse` with the status SERVING.
SERVING = b"\x08\x01"
