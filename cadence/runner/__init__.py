"""One step on the device: `runner` applies the plan, `step_loop` gathers, runs the model, samples and commits.

It is a `loop` of passes of the model (`forward_pass`); `stages` has the loop of a stage that is not the last. `layout`
and `buffers` make the batch, `shapes` and `graphs` record and replay it, `parts` brings results to the host,
`after_sample` is where drafts are proposed, `driver` and `feature` are what the loop knows of a device and of a
feature. `profile` and `warmup` run plans on the dummy row. Imports `sample`, `models/interface`, `kernels/interface`
and device, never a feature; `executor/worker` imports it.
"""
