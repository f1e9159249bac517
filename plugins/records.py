#!/usr/bin/env python3
"""Writes the fields of the contract's records into the SDKs, from wit/types.wit: plugins/records.py [--check]

They stand between two comments, of which the first names the record: `fields of Need: …` has all of them, `plain fields of
Request: …` those that are a text, a number or a boolean, and `fields of Response without status, children: …` all but some.
With --check, writes nothing, and fails when a file is out of date.
"""

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent
RECORD = re.compile(r"    record ([\w-]+) \{\n(.*?)\n    \}", re.DOTALL)
FIELD = re.compile(r"((?: *///.*\n)*) *%?([\w-]+): ([^,\n]+),?")
MARKS = re.compile(
    r"^(?P<indent>[ \t]*)(?://|#) (?P<plain>plain )?fields of (?P<record>\w+)(?: without (?P<without>[\w, ]+))?: .*\n"
    r"(?:(?!.*(?://|#) (?:plain )?fields of ).*\n)*?(?P<end>[ \t]*(?://|#) end of fields\n)",
    re.MULTILINE,
)
# The type in WIT of what is plain.
TEXT, BOOL, LONG, SHORT = "string", "bool", "u64", "u32"


class Field:
    """A field of a record: its name in JSON, what it means, its type in WIT, and whether it is a list or may be absent."""

    def __init__(self, comment, name, type):
        self.name, self.snake = camel(name), name.replace("-", "_")
        self.text = " ".join(comment.replace("///", "").split()).replace("`none`", "absent")
        self.text = re.sub(r"(^|\. )([a-z])", lambda letters: letters[0].upper(), self.text)
        # A boolean that is absent is false, so it is no `option`.
        self.is_list, self.type = type.startswith("list<"), re.sub(r"(?:list|option)<(?!bool)(.*)>", r"\1", type)
        # Commands send the names of the cases, with other letters.
        if self.type in ("condition-status", "event-type"):
            self.type = TEXT
        self.is_plain = not self.is_list and self.type in (TEXT, BOOL, LONG, SHORT)
        self.is_optional = self.is_list or type.startswith("option<") or type == BOOL


def camel(name):
    return re.sub(r"-(\w)", lambda letter: letter[1].upper(), name)


def pascal(name):
    return camel(f"-{name}")


def records():
    """Returns the fields of each record by its name."""
    found = dict(RECORD.findall((ROOT.parent / "wit/types.wit").read_text()))
    known = {pascal(name): [Field(*it) for it in FIELD.findall(fields)] for name, fields in found.items()}
    for record, fields in known.items():
        for field in fields:
            if field.type not in (TEXT, BOOL, LONG, SHORT, "json", *found):
                sys.exit(f"{record}.{field.name} is of the type {field.type}, which the SDKs do not have")
    return known


def by_hand(record, field, why):
    sys.exit(f"{record}.{field.name}: {why}: write it by hand, and name it in the comment, as in `without {field.name}`")


def go(record, field):
    names = {"id": "ID", "crd": "CRD", "apiVersion": "APIVersion"}
    name = names.get(field.name, pascal(field.name))
    basic = {TEXT: "string", BOOL: "bool", LONG: "uint64", SHORT: "uint32", "json": "object"}
    type = basic.get(field.type, camel(field.type))
    # A number that a request does not have is not 0, and a record is never empty.
    has_nil = field.is_list or field.type in (TEXT, BOOL, "json") or (field.is_plain and record != "Request")
    if field.is_optional and not has_nil:
        type = f"*{type}"
    tag = field.name + (",omitempty" if field.is_optional else "")
    return [f"// {field.text}", f'{name} {"[]" if field.is_list else ""}{type} `json:"{tag}"`']


def typescript(record, field):
    basic = {TEXT: "string", BOOL: "boolean", LONG: "number", SHORT: "number", "json": "object"}
    type = basic.get(field.type, pascal(field.type))
    if record == "Request":
        type += " | null" * (field.is_optional and field.type != BOOL)
        return [f"/** {field.text} */", f"readonly {field.name}{'?' * field.is_optional}: {type};"]
    return [f"/** {field.text} */", f"{field.name}{'?' * field.is_optional}: {type}{'[]' * field.is_list};"]


def javascript(record, field):
    """The engine wants every list and every boolean of a record, and a field that is not there cannot be set."""
    return [f"{field.name}: {'[]' if field.is_list else 'false' if field.type == BOOL else 'undefined'},"]


def python(record, field):
    type = {TEXT: "str", BOOL: "bool", LONG: "int", SHORT: "int"}[field.type]
    is_optional = field.is_optional and field.type != BOOL
    return [f"# {field.text}", f"{field.snake}: {f'Optional[{type}]' if is_optional else type}"]


def zig(record, field):
    type = {TEXT: "[]const u8", BOOL: BOOL, LONG: LONG, SHORT: SHORT}.get(field.type, pascal(field.type))
    if field.is_list:
        type = f"[]const {type} = &.{{}}"
    elif field.type == BOOL:
        type = "bool = false"
    elif field.is_optional:
        type = f"?{type} = null"
    elif record == "Request":
        type += ' = ""'
    return [f"/// {field.text}", f"{field.name}: {type},"]


def assemblyscript(record, field):
    type = {TEXT: "string", BOOL: "bool", LONG: "i64", SHORT: "i32"}.get(field.type, pascal(field.type))
    if field.is_optional and not field.is_list and field.type not in (TEXT, BOOL):
        by_hand(record, field, "in AssemblyScript, only a text can be absent")
    if record == "Request":
        read = {TEXT: "text", BOOL: "isTrue"}.get(field.type, "number")
        cast = f"<{type}>" if read == "number" else ""
        return [f"/** {field.text} */", f'get {field.name}(): {type} {{', f'  return {cast}this.item.at("{field.name}").{read};', "}"]
    if field.is_optional and not field.is_list and field.type != BOOL:
        return [f"/** {field.text} */", "@omitnull()", f"{field.name}: {type} | null = null;"]
    default = "[]" if field.is_list else {TEXT: '""', BOOL: "false"}.get(field.type, "0")
    return [f"/** {field.text} */", f"{field.name}: {type}{'[]' * field.is_list} = {default};"]


FILES = {
    "hello/contract.go": go,
    "echo-js/operator-plugin.d.ts": typescript,
    "echo-js/operator-plugin.js": javascript,
    "echo-python/operator_plugin.py": python,
    "echo-zig/operator_plugin.zig": zig,
    "echo-assemblyscript/assembly/operator-plugin.ts": assemblyscript,
}


def main():
    known, outdated = records(), {}
    for file, lines in FILES.items():
        path = ROOT / file
        text = path.read_text()

        def written(mark):
            without = (mark["without"] or "").split(", ")
            fields = [it for it in known[mark["record"]] if it.name not in without]
            if mark["plain"]:
                words = set(re.findall(r"\w+", text))
                for it in fields:
                    # A method that adds one of several is named after one.
                    names = {it.name, it.snake, it.name.removesuffix("s").removesuffix("ren")}
                    if not it.is_plain and not names & words:
                        by_hand(mark["record"], it, f"{path} lacks it, and it is an object or a list")
                fields = [it for it in fields if it.is_plain]
            inner = [mark["indent"] + it for field in fields for it in lines(mark["record"], field)]
            return "\n".join([mark[0].split("\n", 1)[0], *inner, mark["end"]])

        new, count = MARKS.subn(written, text)
        if count != len(re.findall(r"(//|#) end of fields\n", text)):
            sys.exit(f"{path}: each \"end of fields\" needs one comment \"fields of Record: …\" before it")
        if new != text:
            outdated[path] = new
    if outdated and "--check" in sys.argv:
        sys.exit(f"{', '.join(map(str, outdated))}: out of date: run `make contract`")
    for path, new in outdated.items():
        path.write_text(new)


if __name__ == "__main__":
    main()
