// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Who uses whom among the C files of a folder.

use super::circles::{Graph, draw};
use super::closing;
use std::collections::{BTreeMap, BTreeSet};

/// Splits C into identifiers, numbers and single characters. Comments and literals are left out.
fn tokens(source: &str) -> Vec<String> {
    let text: Vec<char> = source.chars().collect();
    let at = |i: usize| text.get(i).copied().unwrap_or('\0');
    let mut out = Vec::new();
    let mut i = 0;
    while i < text.len() {
        let c = text[i];
        if c == '/' && at(i + 1) == '/' {
            while i < text.len() && text[i] != '\n' {
                i += 1;
            }
        } else if c == '/' && at(i + 1) == '*' {
            i += 2;
            while i < text.len() && (text[i] != '*' || at(i + 1) != '/') {
                i += 1;
            }
            i += 2;
        } else if c == '"' || c == '\'' {
            i += 1;
            while i < text.len() && text[i] != c {
                i += if text[i] == '\\' { 2 } else { 1 };
            }
            i += 1;
        } else if c.is_alphanumeric() || c == '_' {
            let start = i;
            while at(i).is_alphanumeric() || at(i) == '_' {
                i += 1;
            }
            out.push(text[start..i].iter().collect());
        } else {
            if !c.is_whitespace() {
                out.push(c.to_string());
            }
            i += 1;
        }
    }
    out
}

/// What the C files of a folder define for others: functions and data, at the outermost level and not static.
fn c_definitions(source: &str) -> Vec<String> {
    let mut code = String::new();
    let mut directive = false;
    for line in source.lines() {
        directive = directive || line.starts_with('#');
        if !directive {
            code += line;
            code.push('\n');
        }
        directive = directive && line.ends_with('\\');
    }
    let tokens = tokens(&code);
    let is_word = |t: &str| t.starts_with(|c: char| c.is_alphabetic() || c == '_');
    let mut found = Vec::new();
    let (mut from, mut i) = (0, 0);
    while i < tokens.len() {
        match tokens[i].as_str() {
            "__attribute__" => i = closing(&tokens, i + 1),
            "(" | "=" | "[" | ";" if i > from => {
                let head = &tokens[from..i];
                let name = head.last().filter(|t| is_word(t) && head.len() > 1).cloned();
                // To the end of what this declares, and whether it is a definition.
                let mut end = i;
                let mut body = tokens[i] != "(";
                while end < tokens.len() && tokens[end] != ";" {
                    let opened = tokens[end] == "{";
                    end = if matches!(tokens[end].as_str(), "(" | "[" | "{") { closing(&tokens, end) } else { end } + 1;
                    if opened && tokens[i] == "(" {
                        body = true;
                        break;
                    }
                }
                let hidden = |t: &String| matches!(t.as_str(), "static" | "extern" | "typedef");
                let type_alone = tokens[i] == ";" && matches!(head[0].as_str(), "struct" | "enum" | "union") && head.len() < 3;
                if body && !type_alone && !head.iter().any(hidden) {
                    found.extend(name);
                }
                i = end;
                from = i + usize::from(tokens.get(i).is_some_and(|t| t == ";"));
                i = from;
                continue;
            }
            "{" => i = closing(&tokens, i),
            ";" => from = i + 1,
            _ => (),
        }
        i += 1;
    }
    found
}

/// The source without macros whose parameters have names of other things.
fn without_parameters(source: &str) -> String {
    let mut code = String::new();
    let mut parameters: Vec<String> = Vec::new();
    for line in source.lines() {
        if let Some((name, rest)) = line.strip_prefix("#define ").and_then(|rest| rest.split_once('('))
            && !name.contains(char::is_whitespace)
        {
            parameters = tokens(rest.split(')').next().unwrap_or_default());
        }
        let words = if parameters.is_empty() { vec![line.to_string()] } else { tokens(line) };
        code += &words.into_iter().filter(|word| !parameters.contains(word)).collect::<Vec<_>>().join(" ");
        code.push('\n');
        if !line.ends_with('\\') {
            parameters.clear();
        }
    }
    code
}

/// What the C files of one folder use of each other: x.c and x.h are one.
pub fn c_graph(files: &[(String, String)]) -> Graph {
    let stem = |name: &str| name.rsplit_once('.').map_or(name, |(stem, _)| stem).to_string();
    let headers: Vec<BTreeSet<String>> =
        files.iter().filter(|(name, _)| name.ends_with(".h")).map(|(_, source)| tokens(source).into_iter().collect()).collect();
    let mut homes: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for (name, source) in files.iter().filter(|(name, _)| name.ends_with(".c")) {
        // What no header declares is the file's own, or stands in for a function of a library.
        let declared = |symbol: &String| headers.iter().any(|words| words.contains(symbol));
        for symbol in c_definitions(source).into_iter().filter(declared) {
            homes.entry(symbol).or_default().insert(stem(name));
        }
    }
    let mut graph = Graph::new();
    for (name, source) in files {
        let own = stem(name);
        for line in source.lines().filter(|l| l.starts_with("#include \"")) {
            let header = line.split('"').nth(1).unwrap_or_default();
            if files.iter().any(|(name, _)| name == header) {
                draw(&mut graph, &own, &stem(header), header);
            }
        }
        // A header that only declares is no user.
        let tokens = if name.ends_with(".h") { Vec::new() } else { tokens(&without_parameters(source)) };
        for (i, word) in tokens.iter().enumerate() {
            let field = i > 0 && (tokens[i - 1] == "." || i > 1 && tokens[i - 2] == "-" && tokens[i - 1] == ">");
            if let Some(home) = homes.get(word).filter(|home| !field && home.len() == 1) {
                home.iter().for_each(|home| draw(&mut graph, &own, home, word));
            }
        }
    }
    graph
}

#[test]
fn arrows_between_files_of_c_are_seen() {
    let defined = |source| c_definitions(source);
    assert_eq!(defined("int f(void);\nint f(void)\n{\n\tg();\n}\nstatic int h(int a) { return a; }\nstruct s { int x; };\n"), ["f"]);
    assert_eq!(defined("#define M(x) \\\n\tk(x)\nextern int n;\nint n = 3, m[2];\nconst struct s table = {.f = g};\n"), ["n", "table"]);
    assert_eq!(defined("typedef int (*fn)(void);\n__attribute__((noinline)) struct s *make(int (*f)(int))\n{\n}\n"), ["make"]);
    let files = |list: &[(&str, &str)]| list.iter().map(|(n, s)| (n.to_string(), s.to_string())).collect::<Vec<_>>();
    let hub = ("hub.h", "void f(void);\nvoid g(void);\n");
    let two = files(&[
        hub,
        ("a.c", "#include \"hub.h\"\nvoid f(void) { g(); }\n"),
        ("b.c", "#include \"hub.h\"\nvoid g(void) { x->f(); f(); }\n"),
    ]);
    assert_eq!(super::circles::circles(&c_graph(&two)), ["a -> b -> a\n    a -> b: g\n    b -> a: f"]);
    let headers = files(&[("a.h", "#include \"b.h\"\n"), ("b.c", "#include \"a.h\"\n"), ("b.h", "")]);
    assert_eq!(super::circles::circles(&c_graph(&headers)), ["a -> b -> a\n    a -> b: b.h\n    b -> a: a.h"]);
    let none = files(&[hub, ("a.c", "void f(void) { g(); }\n"), ("b.c", "#define M(f) \\\n\tf\nvoid g(void) { x->f(); }\n")]);
    assert_eq!(super::circles::circles(&c_graph(&none)), Vec::<String>::new());
}
