#!/usr/bin/env python3
"""Tests of the command `attn`: run.py ATTN [CASE ...]. Needs the standard library only."""

import cases_answers  # noqa: F401
import cases_bench  # noqa: F401
import cases_commands  # noqa: F401
import cases_files  # noqa: F401
import cases_grad  # noqa: F401
import cases_manual  # noqa: F401
import cases_napkin  # noqa: F401
import cases_options  # noqa: F401
import cases_paths  # noqa: F401
import harness

if __name__ == "__main__":
    harness.main()
