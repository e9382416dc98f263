"""Code that models wrote: graded by EvalPlus in another interpreter, each program shut in by itself."""
