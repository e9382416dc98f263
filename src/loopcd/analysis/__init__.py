"""Statistics over traces, interventions, and the paper's tables and figures, each by one command (`loopcd reproduce`).

Start with `elements/`: one function a table or figure, from a `laboratory` (answers and traces, made once and shared) to a
`result` (a table, perhaps panels, and a finding). `statistics` and `intervals` count over traces. `rendering/` writes results
as Markdown, CSV, JSON, pictures and one page; `reproduce` does it all.
"""
