"""torch's TCPStore doing what a coordinator does: every client hands in an entry, and gets one spec made of all of them.

    tcpstore.py CLIENTS ROUNDS

Clients are connections of their own, each with a thread that waits, in a few processes; the store is in another. The
first client gathers all entries and sets the spec; all have gathered and wait for it when the last one hands in its
entry. Prints a JSON list: milliseconds from then until the last client has the spec, for each round."""

import json
import multiprocessing
import resource
import sys
import threading
import time
from multiprocessing.connection import Connection

from torch.distributed import TCPStore

PROCESSES = 4
HOST = "127.0.0.1"


def entry(client: int) -> str:
    """As long as what Muster says of a node with 8 tasks when it names each."""
    return json.dumps({"name": f"n{client + 1}", "rank": 8 * client, "tasks": 8, "port": 20000 + client % 10000})


def serve_clients(pipe: Connection, mine: list[int], clients: int, rounds: int) -> None:
    port = pipe.recv()
    stores = {client: TCPStore(HOST, port, None, False) for client in mine}
    for number in range(rounds):
        pipe.send("connected")
        pipe.recv()
        times: list[int] = []
        threads = []
        last = clients - 1
        began = threading.Event()

        def take_part(client: int, number: int = number, times: list[int] = times, began: threading.Event = began) -> None:
            store = stores[client]
            if client == last:
                began.wait()
                times.append(-time.monotonic_ns())
            store.set(f"{number}/{client}", entry(client))
            if client == 0:
                entries = [store.get(f"{number}/{other}") for other in range(last)]
                pipe.send("gathered")
                entries.append(store.get(f"{number}/{last}"))
                store.set(f"{number}/spec", b"\n".join(entries).decode())
            spec = store.get(f"{number}/spec")
            now = time.monotonic_ns()
            assert spec.count(b"\n") == clients - 1
            times.append(now)

        for client in mine:
            threads.append(threading.Thread(target=take_part, args=(client,)))
            threads[-1].start()
        if last in mine:
            pipe.recv()
            began.set()
        for thread in threads:
            thread.join()
        pipe.send(times)


def main() -> None:
    clients, rounds = int(sys.argv[1]), int(sys.argv[2])
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    context = multiprocessing.get_context("fork")
    pipes = []
    processes = []
    for share in range(PROCESSES):
        mine = list(range(share, clients, PROCESSES))
        here, there = context.Pipe()
        pipes.append(here)
        processes.append(context.Process(target=serve_clients, args=(there, mine, clients, rounds), daemon=True))
        processes[-1].start()
    store = TCPStore(HOST, 0, None, True, wait_for_workers=False)
    for pipe in pipes:
        pipe.send(store.port)
    result = []
    for _ in range(rounds):
        for pipe in pipes:
            assert pipe.recv() == "connected"
        for pipe in pipes:
            pipe.send("begin")
        assert pipes[0].recv() == "gathered"
        # Every other client has handed its entry in and is about to wait, or waits already.
        time.sleep(0.2)
        pipes[(clients - 1) % PROCESSES].send("go")
        times = [t for pipe in pipes for t in pipe.recv()]
        began = -min(times)
        result.append((max(times) - began) / 1e6)
    for process in processes:
        process.join()
    print(json.dumps(result))


if __name__ == "__main__":
    main()
