"""The library's speed on the machine at hand, beside its ceilings and other ways of the same work.

`suite` runs `cases` and keeps what it has; a case compares a few ways of doing one piece of work,
in one run, and `bounds` says what each of them must multiply and move.
"""
