import pytest
from server import Server


@pytest.fixture(scope="session")
def server():
    with Server("--max-model-len", "8192", "--disable-access-log") as running:
        yield running
        assert running.process.poll() is None, running.log  # it survived every test
