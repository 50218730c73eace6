"""A check of the contract that fails shows its values, as one in a test module does."""

import pytest

pytest.register_assert_rewrite("tests.retrievers.contract")
