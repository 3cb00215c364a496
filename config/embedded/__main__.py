"""The command line: python -m config.embedded start|stop|status|remove."""

import sys

from config import embedded
from config.embedded.home import CHECKOUT

COMMANDS = ("start", "stop", "status", "remove")


def run(command: str) -> None:
    """Do what the command names, and print the outcome."""
    if command == "stop":
        for label in embedded.stop():
            print(f"{label} stopped.")
    elif command == "remove":
        embedded.remove()
        print("The embedded servers and their data are gone.")
    elif command == "status" and not (CHECKOUT / ".run").is_dir():
        print("No embedded server was ever started in this checkout.")
    else:
        if command == "start":
            embedded.start()
        for server in embedded.servers():
            process = server.process()
            state = f"runs as pid {process.pid}" if process else "does not run"
            print(f"{server.label} {state}; log {server.log}")


def main(arguments: list[str]) -> int:
    """Run one command; returns the exit status."""
    if len(arguments) != 1 or arguments[0] not in COMMANDS:
        print(f"usage: python -m config.embedded {'|'.join(COMMANDS)}", file=sys.stderr)
        return 2
    try:
        run(arguments[0])
    except embedded.EmbeddedError as error:
        print(f"holdfast: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
