"""Running a program that nobody has read, so that it can hurt nobody.

`run(program, limits, level)` forks, takes away all that the program has no need of, and watches it. Nothing in this package
needs more than the standard library, and all its imports are relative: the interpreter that holds EvalPlus runs it from its
folder, without the rest of loopcd and what that needs.
"""
