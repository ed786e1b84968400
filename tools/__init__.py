"""Tools of the maintainers of this repository; they are not part of the package."""
