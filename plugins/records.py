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
FIELD = re.compile(r"((?: *///.*\n)*) *%?([\w-]+): (.*),")
MARKS = re.compile(
    r"^(?P<indent>[ \t]*)// (?P<plain>plain )?fields of (?P<record>\w+)(?: without (?P<without>[\w, ]+))?: .*\n"
    r"(?:.*\n)*?(?P<end>[ \t]*// end of fields\n)",
    re.MULTILINE,
)
# The type in WIT of what is plain.
TEXT, BOOL, LONG, SHORT = "string", "bool", "u64", "u32"


class Field:
    """A field of a record: its name in JSON, what it means, its type in WIT, and whether it is a list or may be absent."""

    def __init__(self, comment, name, type):
        self.name = camel(name)
        self.text = " ".join(comment.replace("///", "").split()).replace("`none`", "absent")
        self.text = self.text[:1].upper() + self.text[1:]
        self.is_list, self.type = type.startswith("list<"), re.sub(r"(?:list|option)<(.*)>", r"\1", type)
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
    text = (ROOT.parent / "wit/types.wit").read_text()
    return {pascal(name): [Field(*it) for it in FIELD.findall(fields)] for name, fields in RECORD.findall(text)}


def go(record, field):
    names = {"id": "ID", "crd": "CRD", "apiVersion": "APIVersion"}
    name = names.get(field.name, pascal(field.name))
    type = {TEXT: "string", LONG: "uint64", SHORT: "uint32", "json": "object"}.get(field.type, camel(field.type))
    tag = field.name + (",omitempty" if field.is_optional else "")
    return [f"// {field.text}", f'{name} {"[]" if field.is_list else ""}{type} `json:"{tag}"`']


def typescript(record, field):
    type = {BOOL: "boolean", LONG: "number", SHORT: "number", "json": "object"}.get(field.type, pascal(field.type))
    type = TEXT if field.type == TEXT else type
    if record == "Request":
        # The host gives `false`.
        return [f"/** {field.text} */", f"readonly {field.name}{'?' * (field.is_optional and type != 'boolean')}: {type};"]
    return [f"/** {field.text} */", f"{field.name}{'?' * field.is_optional}: {type}{'[]' * field.is_list};"]


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
    if record == "Request":
        read = {TEXT: "text", BOOL: "isTrue"}.get(field.type, "number")
        return [f"/** {field.text} */", f'get {field.name}(): {type} {{', f'  return this.item.at("{field.name}").{read};', "}"]
    if field.is_optional and not field.is_list:
        return [f"/** {field.text} */", "@omitnull()", f"{field.name}: {type} | null = null;"]
    default = "[]" if field.is_list else {TEXT: '""', BOOL: "false"}.get(field.type, "0")
    return [f"/** {field.text} */", f"{field.name}: {type}{'[]' * field.is_list} = {default};"]


FILES = {
    "hello/contract.go": go,
    "echo-js/operator-plugin.d.ts": typescript,
    "echo-zig/operator_plugin.zig": zig,
    "echo-assemblyscript/assembly/operator-plugin.ts": assemblyscript,
}


def main():
    is_check, known, outdated = "--check" in sys.argv, records(), []
    for file, lines in FILES.items():
        path = ROOT / file
        text = path.read_text()

        def written(mark):
            without = (mark["without"] or "").split(", ")
            fields = [it for it in known[mark["record"]] if it.name not in without and (it.is_plain or not mark["plain"])]
            inner = [mark["indent"] + it for field in fields for it in lines(mark["record"], field)]
            return "\n".join([mark[0].split("\n", 1)[0], *inner, mark["end"]])

        new, count = MARKS.subn(written, text)
        if count != text.count("// end of fields\n"):
            sys.exit(f"{path}: each \"end of fields\" needs one comment \"fields of Record: …\" before it")
        if new != text:
            outdated.append(str(path))
            if not is_check:
                path.write_text(new)
    if outdated and is_check:
        sys.exit(f"{', '.join(outdated)}: out of date: run `make contract`")


if __name__ == "__main__":
    main()
