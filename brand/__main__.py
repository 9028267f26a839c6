"""`python -m brand` is the command `brand`."""

from brand.cli.main import main

if __name__ == "__main__":
    main()
