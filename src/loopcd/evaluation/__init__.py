"""How good: tasks, graders, a runner that can be stopped and resumed, and paired statistics.

Start with `evaluate`, a whole run: a `session` makes the task (`tasks/`) and the engine, `runner` asks it for answers and keeps
them in a `store`, `results` grades and compares them (`statistics`), `report` and `partings` show them; every table of the
package is made by `table`. `plan` reads methods from the command line, `sweep` searches settings, `paper` has the paper's
figures, `code/` runs programs that a model wrote, shut in. `lm_eval_model` is for lm-eval.
"""
