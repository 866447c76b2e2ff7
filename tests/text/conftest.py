"""Command line of the Python tests of src/text."""


def pytest_addoption(parser):
    parser.addoption("--count", type=int, default=None, help="strings per vocabulary (default: $PERIGEE_ORACLE_COUNT or 20000)")
    parser.addoption("--encode-lines", default=None, help="path of the encode_lines executable (default: build-test/)")
