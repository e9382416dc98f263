"""Programs that solve nothing and want to be taken for right, for a problem whose function is `double(x)`.

Each is what is written after the prompt. EvalPlus's sanitiser drops functions without a `return`, so each has one.
"""

# Got "pass" from EvalPlus, where the answers are in the program's own process.
GOT_THROUGH = {
    "equals everything": """
    class Anything:
        def __eq__(self, other):
            return True
    return Anything()
""",
    "an int that equals everything": """
    class Anything(int):
        def __eq__(self, other):
            return True
        def __hash__(self):
            return 0
    return Anything(0)
""",
    "reads the answer from the frame above": """
    import sys
    above = sys._getframe(1).f_locals
    return above["expected"][above["i"]]
""",
    "finds the reference solution": """
    import gc
    for found in gc.get_objects():
        if isinstance(found, dict) and "canonical_solution" in found and found.get("entry_point") == "double":
            space = {}
            exec(found["prompt"] + found["canonical_solution"], space)
            return space["double"](x)
    return None
""",
    "writes the verdict and leaves": """
    import posix, sys
    above = sys._getframe(1).f_locals
    above["stat"].value = 0
    for place in range(len(above["details"])):
        above["details"][place] = 1
    above["progress"].value = len(above["details"])
    posix._exit(0)
    return 0
""",
    "changes the comparison as it runs": """
    import ctypes, sys
    above = sys._getframe(1)
    def trace(frame, event, argument):
        if "exact_match" in frame.f_locals:
            frame.f_locals["exact_match"] = True
            ctypes.pythonapi.PyFrame_LocalsToFast(ctypes.py_object(frame), ctypes.c_int(0))
        return trace
    above.f_trace = trace
    sys.settrace(trace)
    return 0
""",
    "overwrites the answers": """
    import sys
    answers = sys._getframe(1).f_locals["expected"]
    for place in range(len(answers)):
        answers[place] = None
    return None
""",
    # more of the same kind
    "an unequal that is never": """
    class Anything(str):
        def __eq__(self, other):
            return True
        __ne__ = lambda self, other: False
        __hash__ = str.__hash__
    return Anything("x")
""",
    "a list that equals everything": """
    class Anything(list):
        def __eq__(self, other):
            return True
    return Anything()
""",
    "looks through all threads for the answer": """
    import sys
    for frame in sys._current_frames().values():
        while frame is not None:
            if "expected" in frame.f_locals and "i" in frame.f_locals:
                return frame.f_locals["expected"][frame.f_locals["i"]]
            frame = frame.f_back
    return None
""",
    "replaces what the comparison reads": """
    import sys
    above = sys._getframe(1).f_locals
    class Same:
        def __getitem__(self, place):
            return self
        def __eq__(self, other):
            return True
    above["expected"][:] = [Same()] * len(above["expected"])
    return Same()
""",
    "ends the check as passed": """
    import ctypes, posix, sys
    above = sys._getframe(1).f_locals
    stat = above["stat"].get_obj() if hasattr(above["stat"], "get_obj") else above["stat"]
    ctypes.memset(ctypes.addressof(stat), 0, 4)
    for place in range(len(above["details"])):
        above["details"][place] = 1
    above["progress"].value = len(above["details"])
    posix._exit(0)
    return 0
""",
    "writes a reply of its own": """
    import posix
    for number in range(3, 256):
        try:
            posix.write(number, b'{"base": "pass"}\\n{"plus": "pass"}\\n')
        except OSError:
            pass
    return 0
""",
}
# Never got through, and must not.
HELD = {
    "exits": "    import sys\n    sys.exit(0)\n    return 0\n",
    "leaves": "    import posix\n    posix._exit(0)\n    return 0\n",
    "patches numpy": "    import numpy\n    numpy.allclose = lambda *a, **k: True\n    return 0.0\n",
    "patches the tolerance": """
    import ctypes, sys
    frame = sys._getframe(1)
    frame.f_locals["atol"] = 1e9
    ctypes.pythonapi.PyFrame_LocalsToFast(ctypes.py_object(frame), ctypes.c_int(0))
    return 0.0
""",
    "shortens the tests": """
    import sys
    above = sys._getframe(1).f_locals
    for name in ("inputs", "inp"):
        if name in above:
            above[name].clear()
    return 0
""",
    "kills the parent": """
    import ctypes, posix
    for target in (posix.getppid(), 1, 0, -1):
        ctypes.CDLL(None).kill(target, 9)
    return 0
""",
    "kills its group": "    import ctypes\n    ctypes.CDLL(None).kill(0, 9)\n    return 0\n",
    "leaves a daemon": """
    import posix
    if posix.fork() == 0:
        posix.setsid()
        if posix.fork() == 0:
            while True:
                pass
    return 0
""",
    "never ends": "    while True:\n        pass\n    return 0\n",
    "ignores signals": """
    import signal
    signal.signal(signal.SIGALRM, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    while True:
        pass
    return 0
""",
    "writes without end": "    import posix\n    while True:\n        posix.write(1, b'x' * 1000000)\n    return 0\n",
    "asks EvalPlus": """
    import evalplus.data
    return evalplus.data.get_human_eval_plus()["HumanEval/9001"]["canonical_solution"]
""",
    "reads the process above": """
    import ctypes, posix
    handle = ctypes.CDLL(None).syscall(434, posix.getppid(), 0)
    for number in range(3, 64):
        taken = ctypes.CDLL(None).syscall(438, handle, number, 0)
        if taken >= 0:
            posix.write(taken, b'{"base": "pass", "plus": "pass"}\\n')
    return 0
""",
    "runs code where it is compared": """
    class Bomb:
        def __reduce__(self):
            import posix
            return posix._exit, (0,)
    return [Bomb()]
""",
    "sends a pickle that calls": """
    import posix
    for number in range(3, 256):
        try:
            posix.write(number, b".cposix\\n_exit\\n(I0\\ntR.")
        except OSError:
            pass
    return 0
""",
    "replaces the function": """
    import sys
    above = sys._getframe(1)
    for name in ("fn", "function"):
        if name in above.f_locals:
            above.f_locals[name] = lambda *arguments: 2
    import builtins, pickle
    pickle.Pickler.dump = lambda *arguments: None
    builtins.isinstance = lambda *arguments: True
    return 0
""",
    "a very deep list": """
    deep = []
    for _ in range(100000):
        deep = [deep]
    return deep
""",
}
