"""From what a request names to pixels: URLs are read (data URLs, files below one folder, http(s) from domains that are
named, never from addresses that are not public), and what they lead to is decoded, in a thread. Imports the standard
library, `core`, `config` and `media`; `entrypoints` imports it."""
