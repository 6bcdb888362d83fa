"""pylibmc's own tests, as its source distribution has them: `pylibmc_tests.py FOLDER`, the folder of the sources.

The tests search for a server over TCP only: for a Unix socket this search is skipped. The tests of ElastiCache's
server discovery are left out, because they use Python connections, one of them to port 11211 of any server.
"""

import os
import sys

import pylibmc
import pylibmc.test
import pytest


class Counter:
    """Counts what pytest reports."""

    def __init__(self):
        self.passed = 0
        self.skipped = []

    def pytest_runtest_logreport(self, report):
        if report.when == "call" and report.passed:
            self.passed += 1
        elif report.skipped:
            self.skipped.append(report.nodeid)


def main():
    folder = sys.argv[1]
    os.chdir(folder)
    sys.path.insert(0, folder)
    import tests

    options = ["-q", "-p", "no:cacheprovider", "tests", "--deselect=tests/test_autoconf.py::AutoConfTests::test_no_autoconf"]
    if os.environ["SERVER"].startswith("/"):
        os.environ.update(MEMCACHED_TYPE="unix", MEMCACHED_HOST=os.environ["SERVER"], MEMCACHED_PORT="0")
        pylibmc.test.is_alive = lambda address: (True, None)
        options.append("--ignore=tests/test_autoconf.py")
    else:
        host, port = os.environ["SERVER"].rsplit(":", 1)
        os.environ.update(MEMCACHED_TYPE="tcp", MEMCACHED_HOST=host, MEMCACHED_PORT=port)
        tests.PylibmcTestCase.memcached_host, tests.PylibmcTestCase.memcached_port = host, port
    counter = Counter()
    code = pytest.main(options, plugins=[counter])
    if code:
        return code
    for name in counter.skipped:
        print(f"skipped by itself: {name}")
    print(f"pylibmc {pylibmc.__version__} (libmemcached {pylibmc.libmemcached_version}): {counter.passed} checks passed")
    return 0


if __name__ == "__main__":
    sys.exit(main())
