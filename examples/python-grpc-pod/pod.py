"""A writer pod in Python that takes part by gRPC: the package `segue-pod` in front of the service in `../python-writer/writer.py`."""

import asyncio
import logging
import pathlib
import sys

from segue_pod import Membership

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "python-writer"))

from writer import CheckpointingWriter, Log, parser, serve  # noqa: E402


async def main():
    arguments = parser(__doc__)
    arguments.add_argument("--coordinator", action="append", required=True, help="host:port; several are tried in turn")
    arguments.add_argument("--token-file", help="file of the token that the coordinators require")
    arguments.add_argument("--log-dir", required=True, help="the logs that all writers of the keyspace share")
    arguments = arguments.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    writer = CheckpointingWriter(Log(arguments.log_dir), arguments.warm_time)
    membership = Membership(
        writer,
        coordinators=arguments.coordinator,
        keyspace=arguments.keyspace,
        name=arguments.name,
        address=arguments.listen,
        lease_ttl=arguments.lease_ttl,
        token_file=arguments.token_file,
    )
    return await serve(membership, writer, arguments)


if __name__ == "__main__":
    raise SystemExit(asyncio.run(main()))
