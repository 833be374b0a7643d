"""The program's answers in Python: plimsoll.explain, plimsoll.predict, plimsoll.plan."""
