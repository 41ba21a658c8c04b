"""One way to run a process: how it is started, spoken to, watched and ended, and how it notices the end of its parent.

Engines, their ranks, API processes, the text process and the grammar compiler are run this way. The standard input of
each is one end of a socketpair, the *wire*: it brings the first message, and its end is the end of the parent.

`child` starts and ends a process, `parent` is the other side, `ended` says how it ended, `sandbox` limits it. Messages:
`framing` on a stream, `channel` and `async_channel` with descriptors, `message_socket` between machines after a
`handshake`; `messages` is what ranks need of any of them. This folder imports core and config alone; every folder but
those two may import it.
"""
