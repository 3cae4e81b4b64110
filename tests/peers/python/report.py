"""Makes pytest say what becomes of each case, a line each, and run the cases that KINDRED_CASES lists.

With KINDRED_LIST it only lists them. Random input is the same in every run, and little.
"""

import os

import pytest

try:
    from hypothesis import HealthCheck, settings
except ImportError:
    settings = None


def few(name, parent=None, **given):
    """Every profile that a test makes has few inputs, which are the same in every run."""
    given |= {"deadline": None, "max_examples": 3, "derandomize": True, "database": None}
    REGISTER(name, parent, suppress_health_check=list(HealthCheck), **given)


if settings:
    REGISTER = settings.register_profile
    # The class refuses assignments.
    type.__setattr__(settings, "register_profile", staticmethod(few))


def say(line):
    os.write(OUT, ("\n" + line.replace("\n", " ") + "\n").encode())


# pytest captures what the cases write.
OUT = os.dup(1)


def name(nodeid):
    return nodeid.partition("[")[0].rpartition("::")[2]


def pytest_collection_modifyitems(config, items):
    cases = os.environ.get("KINDRED_CASES", "")
    if cases:
        wanted = set(cases.split(","))
        items[:] = [item for item in items if name(item.nodeid) in wanted]
    if "KINDRED_LIST" in os.environ:
        for case in sorted({name(item.nodeid) for item in items}):
            say("case " + case)
        items[:] = []


def pytest_runtest_logstart(nodeid, location):
    say("begins " + name(nodeid))


@pytest.hookimpl
def pytest_runtest_logreport(report):
    case = name(report.nodeid)
    if report.failed:
        crash = getattr(report.longrepr, "reprcrash", None)
        say("failed %s %s" % (case, crash.message[:600] if crash else str(report.longrepr)[-600:]))
    elif report.skipped:
        say("skipped " + case)
    elif report.when == "call":
        say("passed " + case)
