from sigmatrace.plan import Plan
def plan(s): raise SystemExit(print(s))
def execute(s, progress): raise SystemExit(print(s))
