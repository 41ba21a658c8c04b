"""One device with its model, which `load` loads, and its runner (`worker`), and how it carries out messages.

A `carrier` carries them out in order, a `delivery` sends results, `rank_loop` is the life of a rank, `wire` the bytes.
Engines that share experts: `group_memory`, `engine_share`, and `rounds`, in which each runs one forward. `cpu_share`,
`group_memory` and `rounds` import no device, so fronts and engines import them, too. Imports `distributed`, `runner`
and below.
"""
