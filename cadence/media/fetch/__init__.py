"""URLs -> bytes, in a thread: data URLs, files below one folder, and http(s) from domains that are named, never from
addresses that are not public. Imports the standard library, `core` and the limits of `media`."""
