"""How both servers of the example are served: some methods of the public service, and the health check."""

import contextlib

import grpc
from messages import HEALTH, METHODS, SERVICE, SERVING


def server(name, listen, methods):
    """Returns a server of these methods. Each response says in its metadata who has answered."""

    def handler(method, act):
        async def answer(request, context):
            response = await act(request, context)
            await context.send_initial_metadata((("x-answered-by", name),))
            return response

        request, response = METHODS[method]
        return grpc.unary_unary_rpc_method_handler(answer, request.FromString, response.SerializeToString)

    async def check(_request, _context):
        return SERVING

    started = grpc.aio.server()
    handlers = {method: handler(method, act) for method, act in methods.items()}
    started.add_generic_rpc_handlers([
        grpc.method_handlers_generic_handler(SERVICE, handlers),
        grpc.method_handlers_generic_handler(HEALTH, {"Check": grpc.unary_unary_rpc_method_handler(check)}),
    ])
    if not started.add_insecure_port(listen):
        raise SystemExit(f"cannot listen at {listen}")
    return started


@contextlib.asynccontextmanager
async def serving(name, listen, methods):
    """Serves the methods until the block ends, and then what is in flight."""
    started = server(name, listen, methods)
    await started.start()
    try:
        yield
    finally:
        await started.stop(5)
