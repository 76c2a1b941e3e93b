"""A client of the public service. `client.py 127.0.0.1:8080` sends a call of each kind, and prints who has answered."""

import asyncio
import json
import sys

import grpc
from messages import EVENTUAL, HEALTH, METHODS, SERVICE, SERVING, STRONG, pb


class Client:
    """Sends calls by a channel to a router. Each method returns the response's content and who has answered."""

    def __init__(self, channel):
        self.calls = {
            name: channel.unary_unary(f"/{SERVICE}/{name}", request.SerializeToString, response.FromString)
            for name, (request, response) in METHODS.items()
        }
        self.check = channel.unary_unary(f"/{HEALTH}/Check")

    async def update(self, team, person, properties):
        set_properties = json.dumps(properties).encode()
        request = pb.UpdatePersonPropertiesRequest(team_id=team, person_id=person, event_name="$set", set_properties=set_properties)
        response, by = await self.call("UpdatePersonProperties", request)
        return json.loads(response.person.properties), by

    async def get(self, team, person, strong):
        request = pb.GetPersonRequest(team_id=team, person_id=person)
        request.read_options.consistency = STRONG if strong else EVENTUAL
        response, by = await self.call("GetPerson", request, (("x-read-consistency", "strong"),) * strong)
        return json.loads(response.person.properties), by

    async def group(self, team, key):
        request = pb.GetGroupRequest(team_id=team, group_type_index=0, group_key=key)
        response, by = await self.call("GetGroup", request)
        return json.loads(response.group.group_properties), by

    async def is_serving(self):
        return await self.check(b"") == SERVING

    async def call(self, method, request, metadata=()):
        call = self.calls[method](request, metadata=metadata, timeout=60)
        response = await call
        return response, dict(await call.initial_metadata())["x-answered-by"]


async def main(router):
    async with grpc.aio.insecure_channel(router) as channel:
        client = Client(channel)
        print("write by      ", *await client.update(7, 42, {"plan": "free"}))
        print("strong read   ", *await client.get(7, 42, strong=True))
        print("eventual read ", *await client.get(7, 42, strong=False))
        print("group         ", *await client.group(7, "acme"))
        print("health        ", await client.is_serving())


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
