// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Files of one folder form no circle: a file's uses are read before it. In Rust a file uses what its paths name (objects.rs has
//! the method calls); in C, what it includes and whose functions it calls. Tests within a Rust file do not count.

use super::c::c_graph;
use super::{rust, sources};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fs;
use std::path::{Path, PathBuf};

/// Who uses whom, with what of it, for one.
pub type Graph = BTreeMap<String, BTreeMap<String, String>>;

pub fn draw(graph: &mut Graph, from: &str, to: &str, by: &str) {
    if from != to {
        graph.entry(from.to_string()).or_default().entry(to.to_string()).or_insert_with(|| by.to_string());
    }
}

/// The shortest way from `from` to `to`, of one step at least.
fn way(graph: &Graph, from: &str, to: &str) -> Option<Vec<String>> {
    let mut before: BTreeMap<&str, &str> = BTreeMap::new();
    let mut next = VecDeque::from([from]);
    while let Some(at) = next.pop_front() {
        for step in graph.get(at).into_iter().flat_map(BTreeMap::keys) {
            if step == to {
                let back = std::iter::successors(Some(at), |at| before.get(at).copied());
                let mut way: Vec<String> = back.map(str::to_string).collect();
                way.reverse();
                return Some(way);
            }
            if step != from && !before.contains_key(step.as_str()) {
                before.insert(step, at);
                next.push_back(step);
            }
        }
    }
    None
}

/// One circle, its files in order, for each knot of files that all reach each other; then the arrows of the knot.
pub fn circles(graph: &Graph) -> Vec<String> {
    let mut seen = BTreeSet::new();
    let mut found = Vec::new();
    for from in graph.keys() {
        let Some(mut circle) = way(graph, from, from) else { continue };
        let is_in = |k: &&String| way(graph, from, k).is_some() && way(graph, k, from).is_some();
        let knot: BTreeSet<&String> = graph.keys().filter(is_in).collect();
        if seen.insert(knot.clone()) {
            circle.push(from.clone());
            let arrows = knot
                .iter()
                .flat_map(|k| graph[*k].iter().filter(|(to, _)| knot.contains(to)).map(move |(to, by)| format!("\n    {k} -> {to}: {by}")));
            found.push(circle.join(" -> ") + &arrows.collect::<String>());
        }
    }
    found
}

/// One file of Rust, as a module of its crate.
pub struct Module {
    pub file: rust::File,
    /// The names that `use` binds: the path, and whether it is only passed on.
    names: BTreeMap<String, (Vec<String>, bool)>,
}

pub type Crate = BTreeMap<Vec<String>, Module>;

/// A path as written in `module`, from the crate's root; `None` if it leads out of the crate.
pub fn absolute(all: &Crate, module: &[String], written: &[String]) -> Option<Vec<String>> {
    let mut here = module.to_vec();
    let mut rest = written;
    match rest.first()?.as_str() {
        "crate" => here.clear(),
        "self" => (),
        "super" => {
            while rest.first().is_some_and(|w| w == "super") {
                here.pop();
                rest = &rest[1..];
            }
            here.extend_from_slice(rest);
            return Some(here);
        }
        first => {
            here.push(first.to_string());
            if !all.contains_key(&here) {
                let (path, _) = all.get(module)?.names.get(first)?;
                here = path.clone();
            }
        }
    }
    here.extend_from_slice(&rest[1..]);
    Some(here)
}

/// The module in which the thing at `path` is defined: through what modules hand on.
pub fn home(all: &Crate, path: &[String]) -> Option<Vec<String>> {
    let mut path = path.to_vec();
    for _ in 0..8 {
        let depth = (0..=path.len()).rev().find(|&n| all.contains_key(&path[..n]))?;
        let module = path[..depth].to_vec();
        match path.get(depth).and_then(|name| all[&module].names.get(name)) {
            Some((target, _)) if *target != path[..=depth] => path = [&target[..], &path[depth + 1..]].concat(),
            _ => return Some(module),
        }
    }
    None
}

/// The crate of these files, each named by its module.
pub fn load(files: impl IntoIterator<Item = (Vec<String>, String)>) -> Crate {
    let read = |source: String| Module { file: rust::read(&source, false), names: BTreeMap::new() };
    let mut all: Crate = files.into_iter().map(|(module, source)| (module, read(source))).collect();
    // A path may begin with a name that another `use` of the file binds: the second round knows it.
    for _ in 0..2 {
        for module in all.keys().cloned().collect::<Vec<_>>() {
            let imports = &all[&module].file.imports;
            let bound = imports.iter().filter_map(|i| Some((i.name.clone(), (absolute(&all, &module, &i.path)?, i.is_reexport))));
            let bound = bound.collect();
            all.get_mut(&module).expect("just listed").names = bound;
        }
    }
    all
}

/// The modules that a module uses, and what of each, for one.
fn used(all: &Crate, module: &[String]) -> BTreeMap<Vec<String>, String> {
    let Module { file, names } = &all[module];
    // A module that is only named is not used yet: what follows its name is.
    let imports = names.values().filter(|(path, on)| !on && !all.contains_key(path)).map(|(path, _)| (path.clone(), path));
    let paths = file.paths.iter().filter_map(|path| Some((absolute(all, module, path)?, path)));
    imports.chain(paths).filter_map(|(to, written)| Some((home(all, &to)?, written.join("::")))).collect()
}

/// What the files of each folder of a crate use of each other; a folder within is one file here. Folders are named by module.
fn rust_graphs(all: &Crate) -> BTreeMap<Vec<String>, Graph> {
    let mut graphs: BTreeMap<Vec<String>, Graph> = BTreeMap::new();
    for module in all.keys() {
        for (target, by) in used(all, module) {
            let same = module.iter().zip(&target).take_while(|(a, b)| a == b).count();
            let node = |of: &[String]| of.get(same).cloned().unwrap_or_else(|| "mod".to_string());
            draw(graphs.entry(module[..same].to_vec()).or_default(), &node(module), &node(&target), &by);
        }
    }
    graphs
}

/// The library and the programs: where each crate's modules lie, and the names of its folders.
pub fn crates() -> Vec<(String, Crate)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let read = |dir: &Path| {
        let mut files = Vec::new();
        sources(dir, &mut files);
        let of = |f: &PathBuf| {
            let mut module = super::module_of(f.strip_prefix(dir).unwrap());
            module.retain(|m| !matches!(m.as_str(), "lib" | "main"));
            (module, fs::read_to_string(f).unwrap())
        };
        files.iter().map(of).collect::<Vec<_>>()
    };
    let library = read(&root.join("src")).into_iter().filter(|(module, _)| module.first().is_none_or(|m| m != "bin"));
    let mut found = vec![("src".to_string(), load(library))];
    let tools = root.join("tools/src");
    for program in ["gdrfab-perf", "gdrfab-info"] {
        let shared = (vec!["cli".to_string()], fs::read_to_string(tools.join("cli.rs")).unwrap());
        found.push((format!("tools/src/{program}"), load(read(&tools.join(program)).into_iter().chain([shared]))));
    }
    found
}

const C_FOLDERS: [&str; 6] =
    ["plugins/nccl", "plugins/libfabric", "plugins/nixl", "plugins/nccl/tests", "plugins/libfabric/tests", "c-tests/fakes"];

/// The C files of a folder, each with its name and its text.
fn c_files(folder: &str) -> Vec<(String, String)> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(folder);
    let files = fs::read_dir(&path).unwrap_or_else(|e| panic!("{folder}: {e}")).map(|entry| entry.unwrap().path());
    let is_c = |f: &Path| f.extension().is_some_and(|e| ["c", "h", "cpp", "hpp"].iter().any(|known| e == *known));
    let name = |f: &Path| f.file_name().unwrap().to_string_lossy().into_owned();
    files.filter(|f| is_c(f)).map(|f| (name(&f), fs::read_to_string(&f).unwrap())).collect()
}

/// The folders of c-tests that hold conformance programs, and the frame that the programs share.
fn c_test_rooms() -> Vec<String> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("c-tests");
    let folders = fs::read_dir(path).unwrap().map(|entry| entry.unwrap()).filter(|entry| entry.file_type().unwrap().is_dir());
    folders.map(|entry| entry.file_name().to_string_lossy().into_owned()).filter(|name| name != "fakes").collect()
}

/// The room of each file of c-tests, by the file's name without its extension: a program is asked for by that name alone.
fn room_of_each_file(rooms: &[String]) -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    for room in rooms {
        for (name, _) in c_files(&format!("c-tests/{room}")) {
            let stem = name.rsplit_once('.').unwrap().0.to_string();
            let other = found.insert(stem, room.clone());
            assert!(other.as_ref().is_none_or(|other| other == room), "c-tests: {name} is in {room} and in {other:?}");
        }
    }
    found
}

/// The rooms that the files of a room use.
fn room_graph(files: &Graph, room_of: &BTreeMap<String, String>) -> Graph {
    let mut graph = Graph::new();
    for (from, uses) in files {
        uses.keys().for_each(|to| draw(&mut graph, &room_of[from], &room_of[to], &format!("{from} -> {to}")));
    }
    graph
}

#[test]
fn files_of_a_folder_form_no_circle() {
    let mut wrong = Vec::new();
    let mut arrows = 0;
    let mut look = |folder: &str, graph: &Graph| {
        arrows += graph.values().map(BTreeMap::len).sum::<usize>();
        wrong.extend(circles(graph).into_iter().map(|circle| format!("{folder}: {circle}")));
    };
    for (root, all) in crates() {
        for (module, graph) in rust_graphs(&all) {
            let folder: Vec<&str> = std::iter::once(root.as_str()).chain(module.iter().map(String::as_str)).collect();
            look(&folder.join("/"), &graph);
        }
    }
    for folder in C_FOLDERS {
        look(folder, &c_graph(&c_files(folder)));
    }
    // The rooms of c-tests find each other's headers by name alone: one graph of all files, and one of the rooms.
    let rooms = c_test_rooms();
    let files: Vec<(String, String)> = rooms.iter().flat_map(|room| c_files(&format!("c-tests/{room}"))).collect();
    let graph = c_graph(&files);
    look("c-tests", &graph);
    look("c-tests, rooms", &room_graph(&graph, &room_of_each_file(&rooms)));
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
    assert!(arrows > 300, "only {arrows} arrows: does the scanner still read the files?");
}

/// The check above is worth what it would catch.
#[test]
fn circles_are_seen() {
    let graph = |edges: &[(&str, &str)]| {
        let mut graph = Graph::new();
        edges.iter().for_each(|(from, to)| draw(&mut graph, from, to, "x"));
        graph
    };
    assert_eq!(circles(&graph(&[("a", "b"), ("b", "c"), ("a", "c"), ("c", "c")])), Vec::<String>::new());
    assert_eq!(
        circles(&graph(&[("a", "b"), ("b", "c"), ("c", "a"), ("d", "a")])),
        ["a -> b -> c -> a\n    a -> b: x\n    b -> c: x\n    c -> a: x"]
    );
    assert_eq!(circles(&graph(&[("a", "b"), ("b", "a"), ("c", "d"), ("d", "c"), ("c", "a")])).len(), 2);
}

#[test]
fn arrows_between_files_of_rust_are_seen() {
    let found = |files: &[(&str, &str)]| {
        let module = |name: &str| name.split("::").filter(|m| !m.is_empty()).map(str::to_string).collect::<Vec<_>>();
        let graphs = rust_graphs(&load(files.iter().map(|(name, source)| (module(name), source.to_string()))));
        graphs.values().flat_map(|g| g.iter().flat_map(|(from, to)| to.keys().map(move |to| format!("{from} {to}")))).collect::<Vec<_>>()
    };
    let lists = "mod a; mod b; pub use a::Made; pub(crate) use b::{self as other, make};";
    for (a, b, arrows) in [
        ("use super::b::X;", "", &["a b"][..]),
        ("use super::b; fn f() { b::g() }", "fn g() { crate::p::a::f() }", &["a b", "b a"]),
        // Through what mod.rs hands on, and by a name of its own.
        ("", "use super::Made;", &["b a"]),
        ("fn f() { super::make() }", "", &["a b"]),
        ("use crate::p::other::{X, Y};", "", &["a b"]),
        ("use crate::p; fn f() { p::make() }", "", &["a b"]),
        // Of another folder, or from outside: no arrow here.
        ("use crate::q::Z; use std::fmt; fn f() { fmt::g(); x.make(); make() }", "use a::b;", &["p q"]),
        // Of a module within the file.
        ("mod within { use super::*; use super::super::b::X; }", "mod within { fn f() { super::g() } }", &["a b"]),
        ("// super::b::X\n#[cfg(test)] mod tests { use super::super::b::X; }", "#[cfg(test)] use super::a;", &[]),
    ] {
        assert_eq!(found(&[("", "mod p; mod q;"), ("p", lists), ("p::a", a), ("p::b", b), ("q", "")]), arrows, "{a} | {b}");
    }
    // What mod.rs defines is a floor like another.
    let made = [("p", "mod a; pub use a::Made; pub fn f() -> Made { a::g() } pub const N: u32 = 1;"), ("p::a", "use super::N;")];
    assert_eq!(found(&made), ["a mod", "mod a"]);
}
