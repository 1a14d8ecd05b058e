// SPDX-License-Identifier: Apache-2.0 OR MIT
//! One Rust file as syn reads it: its words, its imports, the paths in its code, and the methods that its objects define and
//! call on themselves.

use proc_macro2::{Delimiter, Spacing, TokenStream, TokenTree};
use syn::visit::{self, Visit};

/// A name that a `use` binds.
pub struct Import {
    pub name: String,
    pub path: Vec<String>,
    /// `pub use`: the file passes the name on, and need not use it.
    pub is_reexport: bool,
}

/// A method, or a call of one on `self`, with the type of the `impl` around it, as written.
pub struct Method {
    pub object: Vec<String>,
    pub name: String,
}

#[derive(Default)]
pub struct File {
    pub imports: Vec<Import>,
    pub paths: Vec<Vec<String>>,
    pub methods: Vec<Method>,
    pub calls: Vec<Method>,
}

/// Identifiers, `::` and single characters. Comments and literals are left out.
pub fn words(source: &str) -> Vec<String> {
    let stream = source.parse().unwrap_or_else(|e| panic!("{e}: {source:.60}"));
    let mut found = Vec::new();
    collect_words(stream, &mut found);
    found
}

fn collect_words(stream: TokenStream, found: &mut Vec<String>) {
    let mut after_colon = false;
    for tree in stream {
        let was_after_colon = std::mem::take(&mut after_colon);
        match tree {
            TokenTree::Group(group) => {
                let (open, close) = match group.delimiter() {
                    Delimiter::Parenthesis => ("(", ")"),
                    Delimiter::Brace => ("{", "}"),
                    Delimiter::Bracket => ("[", "]"),
                    Delimiter::None => ("", ""),
                };
                found.push(open.to_string());
                collect_words(group.stream(), found);
                found.push(close.to_string());
            }
            TokenTree::Ident(ident) => found.push(ident.to_string()),
            TokenTree::Punct(p) if p.as_char() == ':' && was_after_colon => {
                found.pop();
                found.push("::".to_string());
            }
            TokenTree::Punct(p) => {
                after_colon = p.as_char() == ':' && p.spacing() == Spacing::Joint;
                found.push(p.as_char().to_string());
            }
            TokenTree::Literal(_) => (),
        }
    }
}

/// Reads a file of a crate. Items under `#[cfg(test)]` count only with `tests`.
pub fn read(source: &str, tests: bool) -> File {
    let parsed = syn::parse_file(source).unwrap_or_else(|e| panic!("{e}: {source:.60}"));
    let mut reader = Reader { tests, depth: 0, object: None, file: File::default() };
    reader.visit_file(&parsed);
    reader.file
}

struct Reader {
    tests: bool,
    /// Modules within the file around the present item: so many `super` stay in the file.
    depth: usize,
    /// The type of the `impl` around the present item.
    object: Option<Vec<String>>,
    file: File,
}

fn is_for_tests(attributes: &[syn::Attribute]) -> bool {
    attributes.iter().any(|a| a.path().is_ident("cfg") && a.parse_args::<syn::Path>().is_ok_and(|p| p.is_ident("test")))
}

fn attributes_of(item: &syn::Item) -> &[syn::Attribute] {
    match item {
        syn::Item::Const(i) => &i.attrs,
        syn::Item::Enum(i) => &i.attrs,
        syn::Item::Fn(i) => &i.attrs,
        syn::Item::Impl(i) => &i.attrs,
        syn::Item::Macro(i) => &i.attrs,
        syn::Item::Mod(i) => &i.attrs,
        syn::Item::Static(i) => &i.attrs,
        syn::Item::Struct(i) => &i.attrs,
        syn::Item::Trait(i) => &i.attrs,
        syn::Item::Type(i) => &i.attrs,
        syn::Item::Use(i) => &i.attrs,
        _ => &[],
    }
}

fn segments(path: &syn::Path) -> Vec<String> {
    path.segments.iter().map(|s| s.ident.to_string()).collect()
}

impl Reader {
    /// A path as it would be written outside of the modules within the file.
    fn outside(&self, mut path: Vec<String>) -> Vec<String> {
        let supers = path.iter().take_while(|word| *word == "super").count();
        path.drain(..supers.min(self.depth));
        if supers > 0 && supers <= self.depth {
            path.insert(0, "self".to_string());
        }
        path
    }

    fn import(&mut self, tree: &syn::UseTree, mut before: Vec<String>, is_reexport: bool) {
        let mut bind = |name: String, path: Vec<String>| {
            let path = self.outside(path);
            self.file.imports.push(Import { name, path, is_reexport });
        };
        match tree {
            syn::UseTree::Path(p) => {
                before.push(p.ident.to_string());
                self.import(&p.tree, before, is_reexport);
            }
            syn::UseTree::Group(g) => g.items.iter().for_each(|tree| self.import(tree, before.clone(), is_reexport)),
            syn::UseTree::Glob(_) => bind(format!("* of {}", before.join("::")), before),
            syn::UseTree::Name(n) if n.ident == "self" => bind(before.last().cloned().unwrap_or_default(), before),
            syn::UseTree::Name(n) => {
                before.push(n.ident.to_string());
                bind(n.ident.to_string(), before);
            }
            syn::UseTree::Rename(r) => {
                if r.ident != "self" {
                    before.push(r.ident.to_string());
                }
                bind(r.rename.to_string(), before);
            }
        }
    }

    fn call(&mut self, name: String) {
        if let Some(object) = &self.object {
            self.file.calls.push(Method { object: object.clone(), name });
        }
    }

    fn path(&mut self, path: Vec<String>) {
        if path.len() == 2 && path[0] == "Self" {
            self.call(path[1].clone());
        }
        let path = self.outside(path);
        self.file.paths.push(path);
    }

    /// Reads the arguments of a macro as words, because they need not be Rust.
    fn within_macro(&mut self, stream: TokenStream) {
        let words = words_of(stream);
        let word = |i: usize| words.get(i).map_or("", String::as_str);
        let is_name = |i: usize| word(i).starts_with(|c: char| c.is_alphabetic() || c == '_');
        let mut i = 0;
        while i < words.len() {
            if word(i) == "self" && word(i + 1) == "." && word(i + 3) == "(" {
                self.call(word(i + 2).to_string());
            }
            let begins = i == 0 || !matches!(word(i - 1), "::" | "." | "fn" | "mod" | "struct" | "enum" | "trait" | "type" | "const");
            let from = i;
            while is_name(i) && word(i + 1) == "::" && is_name(i + 2) {
                i += 2;
            }
            let is_single = i == from && (word(i).starts_with(|c: char| c.is_uppercase()) || matches!(word(i + 1), "(" | "!"));
            if begins && is_name(i) && (i > from || is_single) {
                self.path(words[from..=i].iter().filter(|w| *w != "::").cloned().collect());
            }
            i += 1;
        }
    }
}

fn words_of(stream: TokenStream) -> Vec<String> {
    let mut found = Vec::new();
    collect_words(stream, &mut found);
    found
}

impl<'a> Visit<'a> for Reader {
    fn visit_item(&mut self, item: &'a syn::Item) {
        if self.tests || !is_for_tests(attributes_of(item)) {
            visit::visit_item(self, item);
        }
    }

    fn visit_item_mod(&mut self, module: &'a syn::ItemMod) {
        self.depth += 1;
        visit::visit_item_mod(self, module);
        self.depth -= 1;
    }

    fn visit_item_use(&mut self, item: &'a syn::ItemUse) {
        self.import(&item.tree, Vec::new(), !matches!(item.vis, syn::Visibility::Inherited));
    }

    fn visit_item_impl(&mut self, item: &'a syn::ItemImpl) {
        let of = match &*item.self_ty {
            syn::Type::Path(path) if path.qself.is_none() => Some(self.outside(segments(&path.path))),
            _ => None,
        };
        let around = std::mem::replace(&mut self.object, of);
        visit::visit_item_impl(self, item);
        self.object = around;
    }

    fn visit_impl_item_fn(&mut self, function: &'a syn::ImplItemFn) {
        if !self.tests && is_for_tests(&function.attrs) {
            return;
        }
        if let Some(object) = &self.object {
            self.file.methods.push(Method { object: object.clone(), name: function.sig.ident.to_string() });
        }
        visit::visit_impl_item_fn(self, function);
    }

    fn visit_expr_method_call(&mut self, call: &'a syn::ExprMethodCall) {
        if matches!(&*call.receiver, syn::Expr::Path(p) if p.path.is_ident("self")) {
            self.call(call.method.to_string());
        }
        visit::visit_expr_method_call(self, call);
    }

    fn visit_path(&mut self, path: &'a syn::Path) {
        self.path(segments(path));
        visit::visit_path(self, path);
    }

    fn visit_macro(&mut self, called: &'a syn::Macro) {
        self.path(segments(&called.path));
        self.within_macro(called.tokens.clone());
    }

    /// `pub(in crate::x)` names a module, and uses nothing of it.
    fn visit_visibility(&mut self, _: &'a syn::Visibility) {}

    fn visit_attribute(&mut self, _: &'a syn::Attribute) {}
}
