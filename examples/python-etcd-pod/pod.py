"""A writer pod in Python straight on etcd: `membership.py` in front of the service in `../python-writer/writer.py`."""

import asyncio
import logging
import pathlib
import sys

from etcd import Etcd
from membership import Membership

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "python-writer"))

from writer import CheckpointingWriter, Log, parser, serve  # noqa: E402


async def main():
    arguments = parser(__doc__)
    arguments.add_argument("--etcd", action="append", required=True, help="a client URL; several are tried in turn")
    arguments.add_argument("--prefix", default="/segue/", help="what the keyspace's keys begin with")
    arguments.add_argument("--log-dir", required=True, help="the logs that all writers of the keyspace share")
    arguments = arguments.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    writer = CheckpointingWriter(Log(arguments.log_dir), arguments.warm_time)
    etcd = Etcd(arguments.etcd, timeout=arguments.lease_ttl / 6)
    membership = Membership(
        etcd,
        arguments.prefix,
        arguments.keyspace,
        arguments.name,
        arguments.listen,
        arguments.lease_ttl,
        writer,
    )
    try:
        return await serve(membership, writer, arguments)
    finally:
        await etcd.close()


if __name__ == "__main__":
    raise SystemExit(asyncio.run(main()))
