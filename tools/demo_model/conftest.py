"""pytest option: --full walks the whole training stream instead of a sample."""


def pytest_addoption(parser):
    parser.addoption("--full", action="store_true", help="check every document that was trained on (minutes)")
