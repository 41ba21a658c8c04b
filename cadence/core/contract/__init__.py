"""What crosses a boundary between parts, as plain data, and its bytes (`codec`).

Between the halves: `step` (`StepPlan` down, `StepResult` up) and `features` (what each feature puts into plans, mail
and results, under its name). Between front and engine: `request`, `update`, `messages`. Beside steps: `control`, one
line for each verb. Between fronts: `front_messages`, `adapter_messages`, `response_messages`. Imports core; every
folder may import it.
"""
