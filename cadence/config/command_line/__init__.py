"""How options are written on a command line and in `--help`. Imports core and `peers`."""
