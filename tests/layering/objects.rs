// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Files that are pages of one object: each defines methods of a type, and calls methods that the others define. A path in a
//! `use` does not show such calls, so circles.rs does not see them.
//!
//! The engines of tcp and verbs are objects of that kind still. The recorded numbers may only fall, to zero.

use super::circles::{Crate, Graph, absolute, circles, crates, draw, home, load};
use std::collections::{BTreeMap, BTreeSet};

/// Objects, and how many of their files call each other in a circle.
const RECORDED: &[(&str, usize)] = &[
    ("hmem::cuda::core::Core", 2),
    ("io::Link", 2),
    ("prov::tcp::rail::set::Rails", 2),
    ("prov::tcp::state::State", 12),
    ("prov::verbs::state::State", 14),
];

/// Where a type is defined, and its name.
fn object(all: &Crate, module: &[String], written: &[String]) -> Option<String> {
    let path = absolute(all, module, written).or_else(|| (written.len() == 1).then(|| [module, written].concat()))?;
    let mut home = home(all, &path)?;
    home.push(path.last()?.clone());
    Some(home.join("::"))
}

/// For each object, which of its files calls methods of which, on `self`.
fn calls(all: &Crate) -> BTreeMap<String, Graph> {
    let mut defined: BTreeMap<(String, &str), BTreeSet<String>> = BTreeMap::new();
    for (module, read) in all {
        for method in &read.file.methods {
            let Some(object) = object(all, module, &method.object) else { continue };
            defined.entry((object, &method.name)).or_default().insert(module.join("::"));
        }
    }
    let mut found: BTreeMap<String, Graph> = BTreeMap::new();
    for (module, read) in all {
        for call in &read.file.calls {
            let Some(object) = object(all, module, &call.object) else { continue };
            // A name that two files define, for two traits for example, says not whose it is.
            match defined.get(&(object.clone(), &call.name)) {
                Some(files) if files.len() == 1 => {
                    let target = files.first().expect("there is one");
                    draw(found.entry(object).or_default(), &module.join("::"), target, &format!("{}()", call.name));
                }
                _ => (),
            }
        }
    }
    found
}

/// Files of each object that call each other in a circle, and the circle in words.
fn tangled(all: &Crate) -> BTreeMap<String, (usize, String)> {
    let graphs = calls(all).into_iter();
    let of = |graph: &Graph| {
        let knots = circles(graph);
        let files = |knot: &String| knot.lines().skip(1).filter_map(|arrow| arrow.trim().split(' ').next()).collect::<BTreeSet<_>>().len();
        (knots.iter().map(files).sum::<usize>(), knots.join("\n"))
    };
    graphs.map(|(object, graph)| (object, of(&graph))).filter(|(_, (files, _))| *files > 0).collect()
}

#[test]
fn files_of_an_object_call_each_other_in_no_new_circle() {
    let found: BTreeMap<String, (usize, String)> = crates().iter().flat_map(|(_, all)| tangled(all)).collect();
    let wrong: Vec<String> = found
        .iter()
        .filter(|(object, (files, _))| !RECORDED.contains(&(object.as_str(), *files)))
        .map(|(object, (files, words))| format!("{object}: {files} files call each other in a circle; RECORDED says otherwise:\n{words}"))
        .collect();
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
    let mended: Vec<_> = RECORDED.iter().filter(|(object, _)| !found.contains_key(*object)).collect();
    assert!(mended.is_empty(), "no circle is left in {mended:?}: take them out of RECORDED");
}

/// The check above is worth what it would catch.
#[test]
fn calls_between_files_of_an_object_are_seen() {
    let found = |files: &[(&str, &str)]| {
        let module = |name: &str| name.split("::").filter(|m| !m.is_empty()).map(str::to_string).collect::<Vec<_>>();
        let all = load(files.iter().map(|(name, source)| (module(name), source.to_string())));
        tangled(&all).into_iter().map(|(object, (files, _))| (object, files)).collect::<Vec<_>>()
    };
    let state = ("p::state", "pub struct State; impl State { fn one(&self) {} }");
    let a = ("p::a", "use super::state::State; impl State { pub fn a(&self) { self.b(); self.one() } }");
    let b = |calls: &str| format!("use crate::p::state::State; impl State {{ pub fn b(&self) {{ {calls} }} }}");
    let circle = vec![("p::state::State".to_string(), 2)];
    assert_eq!(found(&[("", "mod p;"), ("p", "mod a; mod b; mod state;"), state, a, ("p::b", &b("self.a()"))]), circle);
    assert_eq!(found(&[("", "mod p;"), ("p", "mod a; mod b; mod state;"), state, a, ("p::b", &b("assert!(Self::a(self))"))]), circle);
    assert_eq!(found(&[("", "mod p;"), ("p", "mod a; mod b; mod state;"), state, a, ("p::b", &b("self.one(); other.a()"))]), []);
}
