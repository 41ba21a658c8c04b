"""`cadence chat`: the loop, its history and settings, slash commands, the terminal. Imports `remote` and `shared`."""
