"""A server that also serves prompts given on standard input, past HTTP, from the same engine.

Prints its URL, then for each line (token ids as JSON) the seconds to the first token.
"""

import json
import sys
import threading


def main(model: str) -> None:
    """Serve `model` without prefix reuse, until standard input ends."""
    from minserve.cli.served_engine import EngineSettings, make_server
    from minserve.request import Request, SamplingParams
    from minserve.service import Ended, Piece
    from minserve.serving.app import create_app
    from minserve.serving.run import Runner, bind, url_of

    server = make_server(EngineSettings(model, prefix_caching=False))
    listener = bind("127.0.0.1", 0, has_keys=False)
    runner = Runner(create_app(server), server, lambda: print("\n@" + url_of(listener), flush=True))
    sampling = SamplingParams(max_tokens=8, ignore_eos=True)

    def read() -> None:
        for number, line in enumerate(sys.stdin):
            first, over, came_s = threading.Event(), threading.Event(), []

            def hear(output, first=first, over=over, came_s=came_s) -> None:
                if isinstance(output, Piece) and not came_s:
                    came_s.append(server.engine.now_s())
                    first.set()
                elif isinstance(output, Ended):
                    over.set()

            began_s = server.engine.now_s()
            request = Request(f"d{number}", tuple(json.loads(line)), sampling, arrival_s=began_s)
            server.watch.traces.expect(request, began_s)
            server.engine.submit(request, hear)
            first.wait()
            took_s = server.engine.now_s() - began_s
            over.wait()
            server.watch.traces.settle(request)
            print(f"@{took_s}", flush=True)
        runner.should_exit = True

    threading.Thread(target=read, daemon=True).start()
    runner.run(sockets=[listener])


main(sys.argv[1])
