"""Running a program that nobody has read, so that it can hurt nobody, and judging it where it cannot reach the judge.

`run(program, level, limits)` forks, takes away all that the program has no need of, and watches it. That needs the standard
library alone; `grader`, `judge` and `plain` are for EvalPlus. All imports are relative: the interpreter
that holds EvalPlus runs the package from its folder, without the rest of loopcd and what that needs.
"""
