"""The endpoints that take recordings. Imported by entrypoints/server/app."""
