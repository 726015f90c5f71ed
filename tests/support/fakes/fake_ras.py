"""A fake of NCCL's RAS: it listens in this process, and speaks the lines of NCCL 2.28.9.

Run as a program, a process of a job that listens and does nothing else: fake_ras.py PORT ANSWER.
"""

import socket
import sys
import threading
import time


class FakeRas:
    """Answers each client with `answer` (bytes). `old`: it knows no JSON, as before NCCL 2.28.7. `stuck`: it accepts
    and says nothing, as of a process that a signal has stopped. `begun`: it sends one byte of its answer a second."""

    def __init__(self, answer=b"", *, address=("127.0.0.1", 0), old=False, stuck=False, begun=False):
        self.answer, self.old, self.stuck, self.begun = answer, old, stuck, begun
        self.requests = []
        family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        self._server = socket.create_server(address, family=family)
        self.address = self._server.getsockname()[:2]
        threading.Thread(target=self._serve, daemon=True).start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._server.close()

    def _serve(self):
        while True:
            try:
                client, _ = self._server.accept()
            except OSError:
                return
            threading.Thread(target=self._talk, args=(client,), daemon=True).start()

    def _talk(self, client):
        try:
            with client, client.makefile("r") as lines:
                for line in lines:
                    self.requests.append(line.strip())
                    if self.stuck:
                        time.sleep(60)
                    if not self._respond(client, line.strip()):
                        return
        except OSError:
            return

    def _respond(self, client, request):
        """Send what RAS does; return whether it goes on."""
        if request.startswith("CLIENT PROTOCOL"):
            client.sendall(b"SERVER PROTOCOL 2\n")
        elif request == "VERBOSE STATUS":
            for at in range(len(self.answer) if self.begun else 0):
                client.sendall(self.answer[at : at + 1])
                time.sleep(0.05)
            client.sendall(self.answer)
            return False
        else:
            client.sendall(b"ERROR: Unknown request\n" if self.old and "FORMAT" in request else b"OK\n")
        return True


if __name__ == "__main__":
    FakeRas(sys.argv[2].encode(), address=("127.0.0.1", int(sys.argv[1])))
    print("listens", flush=True)
    time.sleep(600)
