"""What a server is told: its options, its tenants, its models. Imports `config`; entry points import it."""
