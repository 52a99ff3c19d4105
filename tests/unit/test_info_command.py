"""Which settings `mpishare info` adds."""

import pytest

from mpishare.cli.info import additions

WITHOUT_FILE = {"OMPI_MCA_btl": "^sm,vader"}


@pytest.mark.parametrize(
    ("environ", "added"),
    [
        ({}, WITHOUT_FILE),
        ({"OMPI_MCA_btl": ""}, WITHOUT_FILE),
        ({"OMPI_MCA_btl": "^ofi"}, {"OMPI_MCA_btl": "^ofi,sm,vader"}),
        ({"OMPI_MCA_btl": "self,sm"}, {}),
        ({"PMIX_RANK": "0"}, {}),
        ({"PMI_RANK": "0", "OMPI_MCA_btl": "^ofi"}, {}),
    ],
)
def test_only_where_no_launcher_removes_files(environ, added):
    assert additions(environ) == added
