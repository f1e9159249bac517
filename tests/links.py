#!/usr/bin/env python3
"""Checks that each link leads somewhere: from one Markdown file of this repository to another file, headings included;
with --site FOLDER, from one page of a built site to another file of it."""

import html
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
CODE = re.compile(r"^(```|~~~).*?^\1", re.MULTILINE | re.DOTALL)


def anchors(page: Path) -> set[str]:
    """The anchors that GitHub and mdBook make of a page's headings."""
    headings = re.findall(r"^#+ (.*)$", CODE.sub("", page.read_text()), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading).strip().lower().replace(" ", "-") for heading in headings}


def fault(page: Path, link: str) -> str | None:
    """What is wrong with a link, if anything."""
    path, _, anchor = link.partition("#")
    target = (page.parent / path).resolve() if path else page
    if not target.exists():
        return "there is no such file"
    if anchor and target.suffix == ".md" and anchor not in anchors(target):
        return "that page has no such heading"
    return None


def site(folder: Path) -> int:
    """Prints the broken links of a site; how many there are."""
    faults = 0
    for page in folder.rglob("*.html"):
        if page.name in ("404.html", "print.html", "toc.html"):
            continue
        for link in re.findall(r'href="([^"#?]+)', page.read_text()):
            link = html.unescape(link)
            target = page.parent / link
            if not re.match(r"[a-z]+:", link) and not (target / "index.html" if target.is_dir() else target).exists():
                print(f"{page.relative_to(folder)}: {link}: there is no such file", file=sys.stderr)
                faults += 1
    return faults


def main() -> int:
    if sys.argv[1:2] == ["--site"]:
        return 1 if site(Path(sys.argv[2])) else 0
    names = subprocess.check_output(["git", "ls-files", "--cached", "--others", "--exclude-standard", "*.md"], cwd=ROOT)
    faults = 0
    for name in names.decode().split("\n")[:-1]:
        page = ROOT / name
        for link in LINK.findall(CODE.sub("", page.read_text())):
            if re.match(r"[a-z]+:", link):
                continue
            if problem := fault(page, link):
                print(f"{name}: {link}: {problem}", file=sys.stderr)
                faults += 1
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
