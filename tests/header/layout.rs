// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Lays out cbindgen's output as a reference: ordered by object, with one-line comments beside their items.
//!
//! cbindgen writes all constants, then all types, then all functions. This module orders them as src/capi does (the `mod` lines of mod.rs,
//! then the lines of each file), in sections that comment lines of the sources name:
//!
//! - `// == Memory ==` begins a section, or continues it, until the next such line of the file. types.rs names all of them,
//!   in their order; the comment lines right below are the section's text.
//! - A comment right above a constant's documentation is the caption of a group of constants. A group ends with an empty
//!   line or with the next caption.
//! - `// #define NAME` is the place of a macro that cbindgen.toml contains.
//!
//! Handles stand at the head of the first section, because every section uses some.

use std::collections::HashMap;
use std::fs;
use std::path::Path;

/// Columns of the header.
const WIDTH: usize = 110;
/// Most lines of a comment beside its constant or field; a longer comment stands above.
const BESIDE: usize = 3;
/// Most columns of a field that has its comment beside it.
const NARROW: usize = 50;

#[derive(Default)]
struct Section {
    title: String,
    text: Vec<String>,
}

/// The position of an item in the sources, and the caption of its group, if it is the first of one.
struct Place {
    section: usize,
    number: usize,
    new_group: bool,
    caption: Vec<String>,
}

/// A declaration, or a field, and its comment.
struct Item {
    comment: Vec<String>,
    code: Vec<String>,
}

/// Makes the header from cbindgen's output and the sources in `capi`.
pub fn lay_out(generated: &str, capi: &Path) -> String {
    let (sections, places) = read_sources(capi);
    let blocks: Vec<&str> = generated.split("\n\n").map(|b| b.trim_matches('\n')).collect();
    let includes = blocks.iter().position(|b| b.starts_with("#include")).expect("the includes");
    let (head, rest) = blocks.split_at(includes + 1);
    let (braces, rest): (Vec<&str>, Vec<&str>) = rest.iter().partition(|b| b.starts_with("#ifdef") || b.starts_with("#endif"));
    let [open, close @ ..] = &braces[..] else { panic!("cbindgen wrote no extern \"C\"") };

    let place = |item: &Item| places.get(item.name()).unwrap_or_else(|| panic!("{}: not found in src/capi", item.name()));
    let mut items: Vec<Item> = rest.into_iter().filter(|b| !b.is_empty()).map(Item::new).collect();
    items.sort_by_key(|item| (if item.is_handle() { None } else { Some(place(item).section) }, place(item).number));

    let mut out: Vec<String> = head.iter().chain([open]).map(|b| format!("{b}\n")).collect();
    let (mut section, mut rows) = (None, Vec::new());
    for item in items {
        let Place { section: own, new_group, caption, .. } = place(&item);
        let here = if item.is_handle() { 0 } else { *own };
        let new_group = *new_group && !item.is_handle() || rows.first().is_some_and(Item::is_handle) != item.is_handle();
        if !rows.is_empty() && (section != Some(here) || !item.is_row() || new_group) {
            out.push(table(std::mem::take(&mut rows), ""));
        }
        if section != Some(here) {
            out.push(banner(&sections[here]));
        }
        section = Some(here);
        if !caption.is_empty() {
            out.push(above(caption, "/*", "").trim_end().to_string());
        }
        if item.is_row() {
            rows.push(item);
        } else {
            out.push(item.declaration());
        }
    }
    if !rows.is_empty() {
        out.push(table(rows, ""));
    }
    out.extend(close.iter().map(|b| format!("{b}\n")));
    let text = out.join("\n");
    let wide: Vec<&str> = text.lines().filter(|line| line.chars().count() > WIDTH).collect();
    assert!(wide.is_empty(), "more than {WIDTH} columns in the header:\n{}", wide.join("\n"));
    text
}

fn read_sources(capi: &Path) -> (Vec<Section>, HashMap<String, Place>) {
    let mut sections: Vec<Section> = Vec::new();
    let mut places = HashMap::new();
    let modules = fs::read_to_string(capi.join("mod.rs")).expect("src/capi/mod.rs");
    for module in modules.lines().filter_map(|l| l.strip_prefix("pub mod ")?.strip_suffix(';')) {
        let text = fs::read_to_string(capi.join(module).with_extension("rs")).expect(module);
        let mut section = None;
        let (mut in_text, mut after_empty, mut caption) = (false, true, Vec::new());
        for line in text.lines() {
            if let Some(title) = line.strip_prefix("// == ").and_then(|l| l.strip_suffix(" ==")) {
                let known = sections.iter().position(|s| s.title == title);
                section = Some(known.unwrap_or(sections.len()));
                if known.is_none() {
                    assert!(module == "types", "{module}: types.rs names no section {title}");
                    sections.push(Section { title: title.to_string(), ..Section::default() });
                }
                in_text = known.is_none();
            } else if let Some(name) = item_name(line) {
                let section = section.unwrap_or_else(|| panic!("{module}: {name} stands above the first `// == section ==`"));
                let new_group = after_empty || !caption.is_empty();
                let place = Place { section, number: places.len(), new_group, caption: std::mem::take(&mut caption) };
                places.insert(name.to_string(), place);
                after_empty = false;
            } else if let Some(comment) = line.strip_prefix("//").filter(|c| !c.starts_with(['/', '!'])) {
                let lines = if in_text { &mut sections.last_mut().expect("a section").text } else { &mut caption };
                lines.push(comment.strip_prefix(' ').unwrap_or(comment).to_string());
            } else if !line.starts_with("///") && !line.starts_with("#[") {
                (in_text, after_empty) = (false, line.is_empty() || after_empty);
                caption.clear();
            }
        }
    }
    (sections, places)
}

/// The name that a line of the sources declares to C.
fn item_name(line: &str) -> Option<&str> {
    let declared = [
        "pub const ",
        "pub struct ",
        "pub type ",
        "pub unsafe extern \"C\" fn ",
        "pub unsafe extern \"C-unwind\" fn ",
        "pub extern \"C\" fn ",
        "// #define ",
    ];
    let name = declared.iter().find_map(|start| line.strip_prefix(start))?;
    name.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_')).next()
}

impl Item {
    fn new(block: &str) -> Self {
        let mut lines = block.lines().map(str::trim_end).peekable();
        let mut comment = Vec::new();
        if lines.next_if(|l| l.trim_start() == "/**").is_some() {
            let text = lines.by_ref().map(str::trim_start).take_while(|l| *l != "*/");
            comment.extend(text.map(|l| l.strip_prefix("* ").or(l.strip_prefix('*')).unwrap_or(l).to_string()));
        }
        Item { comment, code: lines.map(str::to_string).collect() }
    }

    fn name(&self) -> &str {
        let first = &self.code[0];
        let word = match first.strip_prefix("#define ").or(first.strip_prefix("typedef struct ")) {
            Some(rest) => rest,
            None if first.starts_with("typedef ") => first.split("(*").nth(1).unwrap_or(first),
            None => first.split('(').next().unwrap_or(first).rsplit([' ', '*']).next().unwrap_or(first),
        };
        word.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_')).next().unwrap_or(word)
    }

    fn is_handle(&self) -> bool {
        self.code.len() == 1 && self.code[0].starts_with("typedef struct ")
    }

    /// True if the item fits one line, and shares a table with its neighbours.
    fn is_row(&self) -> bool {
        self.is_handle() || self.code[0].starts_with("#define ")
    }

    fn declaration(&self) -> String {
        let comment = above(&self.comment, "/**", "");
        let code = match &self.code[..] {
            [first, fields @ .., last] if first.ends_with('{') => {
                let mut found = Vec::new();
                let mut field = Vec::new();
                for line in fields {
                    field.push(line.trim_start());
                    if line.ends_with(';') && !line.trim_start().starts_with('*') {
                        found.push(Item::new(&std::mem::take(&mut field).join("\n")));
                    }
                }
                format!("{first}\n{}{last}", table(found, "    "))
            }
            lines => fill(&lines.iter().map(|l| l.trim_start()).collect::<Vec<_>>().join(" ")),
        };
        format!("{comment}{code}\n")
    }
}

/// Puts the end of a comment on its last line, if that has room.
fn ended(comment: String, indent: &str) -> String {
    match comment.trim_end().rsplit('\n').next().is_some_and(|last| last.len() + 3 <= WIDTH) {
        true => format!("{} */\n", comment.trim_end()),
        false => format!("{comment}{indent} */\n"),
    }
}

/// A comment above its item.
fn above(text: &[String], start: &str, indent: &str) -> String {
    match text {
        [] => String::new(),
        [line] => format!("{indent}{start} {line} */\n"),
        [first, rest @ ..] => {
            let opening = format!("{indent}{start} {first}");
            // One column more than the other lines.
            let (opening, lines) = if opening.chars().count() <= WIDTH { (opening, rest) } else { (format!("{indent}{start}"), text) };
            let body: String = lines.iter().map(|l| format!("{indent} * {l}").trim_end().to_string() + "\n").collect();
            ended(format!("{opening}\n{body}"), indent)
        }
    }
}

fn banner(section: &Section) -> String {
    let title = format!("/* ---- {} ", section.title);
    let mut out = title.clone() + &"-".repeat((WIDTH - 3).saturating_sub(title.len()));
    if section.text.is_empty() {
        return out + " */\n";
    }
    out.push('\n');
    for line in &section.text {
        out.push_str(format!(" * {line}").trim_end());
        out.push('\n');
    }
    ended(out, "")
}

/// Lines of code with their comments in a column beside them.
fn table(rows: Vec<Item>, indent: &str) -> String {
    let fits_beside = |row: &Item| indent.is_empty() || row.code[0].len() <= NARROW;
    let column = rows.iter().filter(|r| fits_beside(r)).map(|r| indent.len() + r.code[0].len()).max().unwrap_or(0) + 2;
    let mut out = String::new();
    for row in rows {
        let code = format!("{indent}{}", row.code[0]);
        let lines = wrap(&row.comment.join(" "), (WIDTH - "/**<  */".len()).saturating_sub(column));
        if row.comment.is_empty() {
            out.push_str(&format!("{code}\n"));
        } else if fits_beside(&row) && lines.len() <= BESIDE && !row.comment.iter().any(String::is_empty) {
            let gap = format!("\n{:column$}     ", "");
            out.push_str(&format!("{code:column$}/**< {} */\n", lines.join(&gap)));
        } else {
            let gap = if indent.is_empty() { "\n" } else { "" };
            out.push_str(&format!("{gap}{}{code}\n{gap}", above(&row.comment, "/**", indent)));
        }
    }
    out.replace("\n\n\n", "\n\n").trim_matches('\n').to_string() + "\n"
}

fn wrap(text: &str, width: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in text.split_whitespace() {
        let last = lines.last_mut().expect("a line");
        if last.is_empty() {
            last.push_str(word);
        } else if last.chars().count() + 1 + word.chars().count() <= width {
            *last += &format!(" {word}");
        } else {
            lines.push(word.to_string());
        }
    }
    lines
}

/// A prototype, with as many parameters in a line as fit.
fn fill(prototype: &str) -> String {
    let Some((start, parameters)) = prototype.split_once('(').filter(|_| prototype.len() > WIDTH) else {
        return prototype.to_string();
    };
    let mut out = format!("{start}(");
    let mut column = out.len();
    for parameter in parameters.split_inclusive(", ") {
        if column + parameter.trim_end().len() > WIDTH {
            out = format!("{}\n{:2$}", out.trim_end(), "", start.len() + 1);
            column = start.len() + 1;
        }
        out.push_str(parameter);
        column += parameter.len();
    }
    out
}
