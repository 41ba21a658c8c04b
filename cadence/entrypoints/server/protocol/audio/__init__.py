"""The shapes of requests and answers of /v1/audio. Imported by entrypoints/server/routes."""
