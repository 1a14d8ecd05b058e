// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Tests of README.md, SECURITY.md, CONTRIBUTING.md, CHANGELOG.md and docs/: links lead somewhere, lines fit a terminal, tables are
//! complete, every page is in the index and names its readers, and no sentence begins with a clause in the place of its subject.

use std::fs;
use std::path::{Path, PathBuf};

/// Most columns of a line of text, and of a table's row or of code.
const COLUMNS: [usize; 2] = [104, 128];

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn pages() -> Vec<(PathBuf, String)> {
    let docs = fs::read_dir(root().join("docs")).unwrap().map(|entry| entry.unwrap().path());
    let mut paths: Vec<PathBuf> = docs.filter(|p| p.extension().is_some_and(|e| e == "md")).collect();
    paths.extend(["README.md", "SECURITY.md", "CONTRIBUTING.md", "CHANGELOG.md"].map(|name| root().join(name)));
    paths.sort();
    paths.into_iter().map(|p| (p.clone(), fs::read_to_string(p).unwrap())).collect()
}

/// The lines of a page with their numbers, and whether they are code.
fn lines(text: &str) -> impl Iterator<Item = (usize, &str, bool)> {
    let mut code = false;
    text.lines().enumerate().map(move |(n, line)| {
        let fence = line.starts_with("```");
        code ^= fence;
        (n + 1, line, code || fence || line.starts_with("    "))
    })
}

/// The anchor by which a link reaches a heading.
fn anchor(heading: &str) -> String {
    let kept = heading.trim().chars().filter(|c| c.is_alphanumeric() || " -_".contains(*c));
    kept.map(|c| if c == ' ' { '-' } else { c.to_ascii_lowercase() }).collect()
}

fn anchors(text: &str) -> Vec<String> {
    lines(text).filter(|(_, line, code)| !code && line.starts_with('#')).map(|(_, line, _)| anchor(line.trim_start_matches('#'))).collect()
}

/// Targets of the links of a line.
fn targets(line: &str) -> Vec<&str> {
    let inline = line.split("](").skip(1).filter_map(|rest| rest.split_once(')')).map(|(target, _)| target);
    let defined = line.strip_prefix('[').and_then(|rest| rest.split_once("]: ")).map(|(_, target)| target);
    inline.chain(defined).collect()
}

/// The reason why a link of a page leads nowhere; None if it leads somewhere.
fn broken(page: &Path, text: &str, target: &str) -> Option<String> {
    if target.starts_with("http") {
        return None;
    }
    let (file, name) = target.split_once('#').unwrap_or((target, ""));
    let path = if file.is_empty() { page.to_path_buf() } else { page.parent().unwrap().join(file) };
    if !path.exists() {
        return Some(format!("{target}: no such file"));
    }
    let there = if file.is_empty() { text.to_string() } else { fs::read_to_string(&path).unwrap_or_default() };
    (!name.is_empty() && !anchors(&there).iter().any(|a| a == name)).then(|| format!("{target}: no such heading"))
}

#[test]
fn links_lead_somewhere() {
    let mut found = 0;
    let mut wrong = Vec::new();
    for (page, text) in pages() {
        for (n, line, _) in lines(&text).filter(|(_, _, code)| !code) {
            for target in targets(line) {
                found += 1;
                wrong.extend(broken(&page, &text, target).map(|why| format!("{}:{n}: {why}", page.display())));
            }
        }
    }
    assert!(found > 50, "only {found} links: the page format is not understood");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn broken_links_are_seen() {
    let page = root().join("docs/abi.md");
    assert_eq!(targets("a [b](c.md#d) and [e](f)"), ["c.md#d", "f"]);
    assert_eq!(targets("[a]: b.txt"), ["b.txt"]);
    assert!(broken(&page, "# A", "nowhere.md").is_some());
    assert!(broken(&page, "# A", "#b").is_some());
    assert!(broken(&page, "# A `b_c`, d", "#a-b_c-d").is_none());
}

#[test]
fn every_page_is_found_from_the_readme() {
    let read = |name: &str| fs::read_to_string(root().join(name)).unwrap();
    let (readme, index) = (read("README.md"), read("docs/README.md"));
    for name in ["docs/README.md", "SECURITY.md", "CONTRIBUTING.md", "CHANGELOG.md"] {
        assert!(readme.contains(&format!("({name})")), "README.md has no link to {name}");
    }
    for (page, _) in pages().iter().filter(|(page, _)| page.parent() == Some(&root().join("docs"))) {
        let name = page.file_name().unwrap().to_str().unwrap();
        assert!(name == "README.md" || index.contains(&format!("({name})")), "docs/README.md has no link to {name}");
    }
}

/// The paragraphs and list items of a page with the numbers of their first lines, each as one line without its mark.
fn paragraphs(text: &str) -> Vec<(usize, String)> {
    let mut found: Vec<(usize, String)> = Vec::new();
    let mut open = false;
    for (n, line, code) in lines(text) {
        let line = line.trim();
        let is_number = |mark: &str| mark.ends_with('.') && mark.len() < 4 && mark.starts_with(|c: char| c.is_ascii_digit());
        let item = line.split_once(' ').filter(|(mark, _)| *mark == "-" || is_number(mark)).map(|(_, item)| item);
        if code || line.is_empty() || line.starts_with(['#', '|']) {
            open = false;
        } else if let Some((_, paragraph)) = found.last_mut().filter(|_| open && item.is_none()) {
            paragraph.push(' ');
            paragraph.push_str(line);
        } else {
            found.push((n, item.unwrap_or(line).to_string()));
            open = true;
        }
    }
    found
}

#[test]
fn pages_name_their_readers() {
    let mut wrong = Vec::new();
    for (page, text) in pages().iter().filter(|(page, _)| !page.ends_with("CHANGELOG.md")) {
        let is_readme = *page == root().join("README.md");
        let says = if is_readme { "It is for " } else { "This page is for " };
        if !paragraphs(text).first().is_some_and(|(_, first)| first.contains(says)) {
            wrong.push(format!("{}: {says:?} is not in its first paragraph", page.display()));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// The sentences of a paragraph that begin with a clause in the place of their subject; questions are allowed.
fn headless(paragraph: &str) -> Vec<&str> {
    const WORDS: [&str; 6] = ["What", "Who", "Which", "Whoever", "Whatever", "Whether"];
    let mut rest = paragraph;
    let mut found = Vec::new();
    while !rest.is_empty() {
        let end = rest.match_indices(['.', '?', '!']).map(|(at, _)| at + 1).find(|end| {
            let after = rest[*end..].trim_start_matches(['*', '_', ')', '"']);
            after.is_empty() || after.starts_with(' ')
        });
        let (sentence, after) = rest.split_at(end.unwrap_or(rest.len()));
        let first = sentence.trim_start_matches(|c: char| !c.is_alphanumeric() && c != '`').split(|c: char| !c.is_alphanumeric()).next();
        if WORDS.contains(&first.unwrap_or_default()) && !sentence.ends_with('?') {
            found.push(sentence.trim());
        }
        rest = after;
    }
    found
}

#[test]
fn sentences_have_subjects() {
    assert_eq!(headless("A queue is full. What comes then waits."), ["What comes then waits."]);
    assert_eq!(headless("**Who may connect.** Anybody."), ["**Who may connect."]);
    assert!(headless("Which way is taken? See `a.rs`. It says which. `Who` is a name. See 1.2 for more").is_empty());
    let mut wrong = Vec::new();
    for (page, text) in pages() {
        for (n, paragraph) in paragraphs(&text) {
            wrong.extend(headless(&paragraph).iter().map(|sentence| format!("{}:{n}: {sentence}", page.display())));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn lines_fit_a_terminal() {
    let mut long = Vec::new();
    for (page, text) in pages().into_iter().filter(|(page, _)| !page.ends_with("CHANGELOG.md")) {
        for (n, line, code) in lines(&text) {
            let most = COLUMNS[usize::from(code || line.starts_with('|'))];
            if line.chars().count() > most {
                long.push(format!("{}:{n}: more than {most} columns", page.display()));
            }
        }
    }
    assert!(long.is_empty(), "{}", long.join("\n"));
}

/// The cells of a row.
fn cells(row: &str) -> usize {
    row.replace("\\|", "").matches('|').count()
}

#[test]
fn tables_are_whole() {
    let is_rule = |line: &str| line.starts_with("|-") && line.chars().all(|c| "|-:".contains(c));
    let mut wrong = Vec::new();
    for (page, text) in pages() {
        let rows: Vec<_> = lines(&text).map(|(n, line, code)| (n, if code { "" } else { line })).collect();
        for (i, (n, row)) in rows.iter().enumerate().filter(|(_, (_, row))| row.starts_with('|')) {
            let above = i.checked_sub(1).map_or("", |i| rows[i].1);
            let below = rows.get(i + 1).map_or("", |(_, line)| line);
            let broken = if above.starts_with('|') { cells(above) != cells(row) } else { !above.is_empty() || !is_rule(below) };
            if broken {
                wrong.push(format!("{}:{n}: not a row of the table above", page.display()));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// The fuzz peer of shm follows the format's page, so a change of the one must be made in the other too.
#[test]
fn the_fuzz_peer_of_shm_has_the_numbers_of_the_format() {
    let page = fs::read_to_string(root().join("docs/shm-format.md")).unwrap();
    let peer = fs::read_to_string(root().join("fuzz/targets/shm/layout.rs")).unwrap();
    let mut named: Vec<String> = peer.split('"').filter(|s| s.starts_with("gdrfab")).map(String::from).collect();
    // Offsets and sizes; multipliers of a hash are hexadecimal.
    let words = peer.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_')).map(|word| word.replace('_', ""));
    named.extend(words.filter(|word| word.len() > 3 && word.bytes().all(|b| b.is_ascii_digit())));
    named.push(format!("version {}", peer.split("VERSION: u32 = ").nth(1).and_then(|rest| rest.split(';').next()).unwrap()));
    assert!(named.len() > 10);
    let missing: Vec<_> = named.iter().filter(|number| !page.contains(number.as_str())).collect();
    assert!(missing.is_empty(), "fuzz/targets/shm/layout.rs has numbers that docs/shm-format.md does not have: {missing:?}");
}
