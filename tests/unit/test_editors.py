"""What editors and type checkers make of `import mpishare`, wherever the program lies."""

import os
import subprocess
import sys

import jedi

from mpishare.errors import ArgumentError

PROGRAM = "import numpy as np\nimport mpishare as ms\n\ntable = ms.share(np.zeros(3))\n"


def run(folder, *args):
    """The output of a command of Python that does not see the folder of the tests."""
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return subprocess.run([sys.executable, *args], cwd=folder, env=environ, capture_output=True, text=True, check=False)


def test_a_folder_of_its_name_does_not_hide_it(tmp_path):
    """Such as that of a clone, when the program lies beside it."""
    (tmp_path / "mpishare").mkdir()
    result = run(tmp_path, "-c", "import mpishare; print(mpishare.ArgumentError.__name__)")
    assert result.stdout == f"{ArgumentError.__name__}\n", result.stderr


def test_mypy_knows_the_types(tmp_path):
    (tmp_path / "program.py").write_text(PROGRAM + "reveal_type(table)\nms.shar\n")
    output = run(tmp_path, "-m", "mypy", "program.py").stdout
    assert "ndarray[tuple[int], numpy.dtype[numpy.float64]]" in output
    assert 'program.py:6: error: Module has no attribute "shar"' in output


def test_jedi_completes_and_shows_arguments(tmp_path):
    """It is what IPython, Jupyter and several editors ask."""
    script = jedi.Script(PROGRAM + "ms.allred", path=tmp_path / "program.py")
    assert [name.name for name in script.complete(5, 9)] == ["allreduce"]
    [signature] = script.get_signatures(4, 17)
    assert signature.params[0].name == "obj"
