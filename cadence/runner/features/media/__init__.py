"""Pictures and sounds among a row's tokens: where they stand (`rope`)."""
