"""``python -m paceline`` is the command ``paceline``."""

from paceline.cli.main import main

if __name__ == "__main__":
    raise SystemExit(main())
