"""The ``kinmqtt`` command."""

import sys

from kinmqtt.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
