"""The command line: python -m config.embedded start|stop|status|remove."""

import sys

from config import embedded


def run(command: str) -> None:
    """Do what the command names, and print the outcome."""
    if command == "stop":
        for label in embedded.stop():
            print(f"{label} stopped.")
    elif command == "remove":
        embedded.remove()
        print("The embedded servers and their data are gone.")
    else:
        if command == "start":
            embedded.start()
        if not (found := embedded.existing()):
            print("No server was started here yet.")
        for server in found:
            process = server.process()
            state = f"runs as pid {process.pid}" if process else "does not run"
            print(f"{server.label} {state}; log {server.log}")


if __name__ == "__main__":
    if len(sys.argv) != 2 or sys.argv[1] not in ("start", "stop", "status", "remove"):
        print("usage: python -m config.embedded start|stop|status|remove", file=sys.stderr)
        sys.exit(2)
    try:
        run(sys.argv[1])
    except embedded.EmbeddedError as error:
        sys.exit(f"holdfast: {error}")
