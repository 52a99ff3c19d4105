"""The long description: README.md, without the pictures and the links to files that a package index does not have."""

import re

from setuptools import Distribution, setup


class OfIndex(Distribution):
    """What pyproject.toml says, but for that; setuptools 61 takes no long description from `setup` beside it."""

    def parse_config_files(self, *args, **kwargs):
        """See setuptools."""
        super().parse_config_files(*args, **kwargs)
        text = re.sub(r"^!\[[^]]*\]\([^)]*\)\n+", "", self.metadata.long_description, flags=re.MULTILINE)
        self.metadata.long_description = re.sub(r"\[([^]]*)\]\((?!https?://|#)[^)]*\)", r"\1", text)


setup(distclass=OfIndex)
