"""What `ddp-template docs` runs."""

from tools.docs.pages import write_documentation

for path in write_documentation():
    print(f"updated {path}")
