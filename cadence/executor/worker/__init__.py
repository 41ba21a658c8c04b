"""One device with its model and runner, and how it carries out messages, in the engine process or in one of its own."""
