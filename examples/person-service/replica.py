"""The service of everything that belongs to no person, such as groups. It knows nothing of Segue: it is no pod."""

import argparse
import asyncio
import json
import signal

from messages import pb
from serving import serving


async def get_group(request, context):
    # So that a test sees what a service of a route is told.
    told = sorted(name for name, _ in context.invocation_metadata() if name.startswith("segue-"))
    group = pb.Group(team_id=request.team_id, group_type_index=request.group_type_index, group_key=request.group_key)
    group.group_properties = json.dumps({"told": told}).encode()
    return pb.GetGroupResponse(group=group)


async def main():
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--name", default="replica")
    arguments.add_argument("--listen", required=True, help="host:port")
    arguments = arguments.parse_args()
    ended = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ended.set)
    async with serving(arguments.name, arguments.listen, {"GetGroup": get_group}):
        await ended.wait()


if __name__ == "__main__":
    asyncio.run(main())
