// SPDX-License-Identifier: Apache-2.0 OR MIT
//! docs/options.md is the table of each provider's answers: every option of the header is set on a real endpoint and read back, and hints
//! ask for promises. The list of the variables follows, by purpose. `make options` (which sets `GDRFAB_BLESS=1`) rewrites the committed file.
//!
//! verbs answers with the fake libibverbs of `c-tests/fakes`; without it, the column stays as it is. The effect of accepted options is
//! tested in c-tests (options, deadline, fault, copier) and in verbs_queues.rs.

mod fakes;
#[path = "fakes/verbs.rs"]
mod world;

use gdrfab::capi::{info, objects, options};
use gdrfab::config;
use gdrfab::error::errno;
use gdrfab::fabric::{EP_MSG, EP_RDM, Info, PROGRESS_AUTO, PROGRESS_MANUAL, UNSPEC};
use gdrfab::mr::Paths;
use gdrfab::prov::flags;
use gdrfab::prov::op::{Common, Iov};
use std::collections::BTreeMap;
use std::ffi::{CStr, CString, c_int, c_void};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::ptr::{null, null_mut};
use std::{env, fs};
use world::{LIB, World, list};

const PROVIDERS: [&str; 3] = ["shm", "tcp", "verbs"];
/// The set of the connectionless endpoints.
const RDM: &str = "shm+tcp";

/// The value to which an option is set.
enum Value {
    ReadOnly,
    U32(u32),
    U64(u64),
    /// One of the provider's paths: the fastest ones, in this number, are skipped.
    Path(usize),
    /// A text, which is read back with a NUL.
    Text(&'static str),
}

/// Every option of the header except the level.
const OPTIONS: &[(&str, Value)] = &[
    ("MIN_MULTI_RECV", Value::U64(128)),
    ("CM_DATA_SIZE", Value::ReadOnly),
    ("DEADLINE", Value::U64(1_000_000_000)),
    ("RECV_DEADLINE", Value::U64(2_000_000_000)),
    ("CONNECT_TIMEOUT", Value::U64(3_000_000_000)),
    ("REQUIRE_PATH", Value::Path(0)),
    ("FORBID_PATH", Value::Path(1)),
    ("COOP", Value::U32(1)),
    ("STREAM", Value::U64(7)),
    ("ACK_TIMEOUT", Value::U32(13)),
    ("RETRY_COUNT", Value::U32(3)),
    ("RNR_RETRY", Value::U32(2)),
    ("MIN_RNR_TIMER", Value::U32(11)),
    ("DRIVER_CALLS", Value::U32(0)),
    ("WHOLE_NAME", Value::U32(1)),
    ("TCP_STREAMS", Value::U32(2)),
    ("RAILS", Value::Text("127.0.0.1,127.0.0.2")),
];

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

#[test]
fn options_are_as_documented() {
    if let Ok(provider) = env::var("CASE") {
        return answers(&provider);
    }
    let fakes = env::var_os("GDRFAB_FAKES").map(PathBuf::from).unwrap_or_default().join("verbs");
    let has_fake = fakes.join("libibverbs.so.1").exists();
    let path = root().join("docs/options.md");
    let bless = env::var_os("GDRFAB_BLESS").is_some();
    assert!(has_fake || !bless, "GDRFAB_FAKES names no directory with verbs/libibverbs.so.1, and the table has all providers");
    // The answers by provider, in the order of the rows.
    let mut columns = BTreeMap::new();
    for provider in PROVIDERS.into_iter().chain([RDM]) {
        if provider == "verbs" && !has_fake {
            println!("skipped for verbs: GDRFAB_FAKES has no verbs/libibverbs.so.1, which is built where infiniband/verbs.h is");
            continue;
        }
        let mut command = fakes::again(provider);
        let copier = concat!("copier=", env!("CARGO_BIN_EXE_gdrfab-copier"));
        command.env("GDRFAB_DEBUG", format!("{copier},{}", LIB.1));
        if provider == "verbs" {
            command.env("LD_LIBRARY_PATH", &fakes);
        }
        let output = command.stderr(Stdio::inherit()).output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(output.status.success(), "{provider}: {text}");
        let rows = text.lines().filter_map(|line| line.strip_prefix("row\t")?.split_once('\t'));
        columns.insert(provider, rows.map(|(row, answer)| (row.to_string(), answer.to_string())).collect::<Vec<_>>());
    }
    let committed = fs::read_to_string(&path).unwrap_or_default();
    let mut table = Table::default();
    for (i, (row, _)) in columns["shm"].iter().enumerate() {
        let answer = |provider| match columns.get(provider) {
            Some(rows) => {
                assert_eq!(&rows[i].0, row, "the rows of {provider}");
                rows[i].1.clone()
            }
            None => committed_answer(&committed, row, provider),
        };
        table.add(row, PROVIDERS.map(answer));
    }
    for ((row, tcp), (same, rdm)) in columns["tcp"].iter().zip(&columns[RDM]) {
        assert_eq!(row, same, "the rows of {RDM}");
        if tcp != rdm {
            table.differs(row, rdm);
        }
    }
    let made = table.text();
    if bless {
        fs::write(&path, &made).unwrap();
    } else if let Some((n, (old, new))) = committed.lines().zip(made.lines()).enumerate().find(|(_, (old, new))| old != new) {
        panic!("docs/options.md is stale from line {}: run `make options`\n  committed: {old}\n  answered:  {new}", n + 1);
    } else {
        assert_eq!(committed.len(), made.len(), "docs/options.md is stale: run `make options`");
    }
}

const HEAD: &str = "\
# Options, promises and variables

This page is for programmers who need to know which option and which promise each provider keeps,
and for operators who set variables of the environment: [Variables](#variables). `make options`
writes the page from the library's own answers: each option is set on an endpoint and read back.

A cell says *holds*, with the default in parentheses, or the errno by which the provider refuses the
option; the numbers in brackets lead to the words of the refusal, below. A program asks for a
promise by hints, or by a call. The limits of verbs are those of a device, here a fake one. The
header `gdrfab.h` says what each option means.

```
";

/// The answers. The texts of refusals are listed below the table, each once.
#[derive(Default)]
struct Table {
    rows: Vec<[String; 1 + PROVIDERS.len()]>,
    /// Answers of connectionless endpoints where they differ from tcp's.
    rdm: Vec<[String; 2]>,
    notes: Vec<String>,
}

impl Table {
    fn add(&mut self, row: &str, answers: [String; PROVIDERS.len()]) {
        let [shm, tcp, verbs] = answers.map(|answer| self.cell(&answer));
        self.rows.push([row.into(), shm, tcp, verbs]);
    }

    fn differs(&mut self, row: &str, answer: &str) {
        let answer = self.cell(answer);
        self.rdm.push([row.into(), answer]);
    }

    fn cell(&mut self, answer: &str) -> String {
        let Some((errno, words)) = answer.split_once(": ") else { return answer.into() };
        let at = self.notes.iter().position(|note| note == words).unwrap_or_else(|| {
            self.notes.push(words.into());
            self.notes.len() - 1
        });
        format!("{errno} [{}]", at + 1)
    }

    fn text(&self) -> String {
        let mut text = HEAD.to_string();
        let head = ["option or promise", "shm", "tcp", "verbs"].map(String::from);
        let rows = || [&head].into_iter().chain(&self.rows);
        let width = |column: usize| rows().map(|row| row[column].len()).max().unwrap_or(0);
        let widths = [width(0), width(1), width(2)];
        for [row, shm, tcp, verbs] in rows() {
            text += &format!("{row:0$}  {shm:1$}  {tcp:2$}  {verbs}\n", widths[0], widths[1], widths[2]);
        }
        text += "\nConnectionless endpoints (shm+tcp) answer as tcp, but for:\n\n";
        for [row, answer] in &self.rdm {
            text += &format!("{row:0$}  {answer}\n", widths[0]);
        }
        text += "\n";
        for (i, note) in self.notes.iter().enumerate() {
            text += &format!("[{}] {note}\n", i + 1);
        }
        text + "```\n" + &variables()
    }
}

const VARIABLES: &str = "\
A variable holds for the whole process, and is for users who do not write the program. Set it in the
environment of every process, on every host (Open MPI: `mpirun -x NAME=VALUE`). Commas separate the
items of a list, and an empty value counts as unset. If a value is invalid, `gdrfab_getinfo()`
fails, and its error names the valid values. `gdrfab-info -e` shows the values that are set.

Each purpose below begins with the means that a program has for it. The choice of a program holds
instead of a variable's value, but a program cannot use a provider, a path or a device that a
variable rules out. A process with more rights than its user (set-uid) ignores all variables.

The plugins have some variables of their own: [NCCL](nccl.md), [NIXL](nixl.md),
[libfabric](libfabric.md). Other pages tell more about [device memory](hmem.md), [tcp](tcp.md),
[verbs](verbs.md), [containers and users of shm](containers.md) and [faults](faults.md).
";

const WORDS: &str = "\
Words of `GDRFAB_DEBUG` are for tests and diagnosis, and may change in any release:
";

/// Breaks a text into lines; `indent` precedes all lines but the first.
fn filled(text: &str, indent: &str) -> String {
    let (mut all, mut width) = (String::new(), 0);
    for word in text.split(' ') {
        if width > 0 && width + 1 + word.len() > 100 {
            all += &format!("\n{indent}");
            width = indent.len();
        } else if width > 0 {
            all.push(' ');
            width += 1;
        }
        all += word;
        width += word.len();
    }
    all + "\n"
}

fn item(name: &str, v: &config::Variable) -> String {
    let default = if v.default.is_empty() { String::new() } else { format!(" (default {})", v.default.replace(',', ", ")) };
    let allowed = match &v.kind {
        // The words of these are in the help, or follow.
        config::Kind::Settings(_) | config::Kind::Flag | config::Kind::Faults => String::new(),
        kind => Some(kind.allowed()).filter(|words| !words.is_empty()).map_or(String::new(), |words| format!(". Values: {words}")),
    };
    filled(&format!("- `{name}`{default}: {}{allowed}", v.help), "  ")
}

fn variables() -> String {
    let mut text = format!("\n## Variables\n\n{VARIABLES}");
    for goal in config::Goal::ALL {
        text += &format!("\n### {}\n\n", goal.title());
        if !goal.by_program().is_empty() {
            text += &(filled(&format!("In a program: {}.", goal.by_program()), "") + "\n");
        }
        config::VARIABLES.iter().filter(|v| v.goal == goal).for_each(|v| text += &item(v.name, v));
    }
    text += &format!("\n{WORDS}\n");
    config::DEBUG_WORDS.iter().for_each(|v| text += &item(&v.spelled(), v));
    text
}

/// Recovers an answer from the committed table.
fn committed_answer(text: &str, row: &str, provider: &str) -> String {
    let at = PROVIDERS.iter().position(|p| *p == provider).unwrap();
    let cells = |line: &str| line.split("  ").map(str::trim).filter(|cell| !cell.is_empty()).map(String::from).collect::<Vec<_>>();
    let cell = text.lines().map(cells).find(|cells| cells.first().is_some_and(|name| name == row)).and_then(|c| c.get(1 + at).cloned());
    let cell = cell.unwrap_or_default();
    match cell.strip_suffix(']').and_then(|cell| cell.split_once(" [")) {
        Some((errno, note)) => {
            let words = text.lines().find_map(|line| line.strip_prefix(&format!("[{note}] ")));
            format!("{errno}: {}", words.unwrap_or_default())
        }
        None => cell,
    }
}

/// The names and numbers of the header's options.
fn in_header() -> BTreeMap<String, c_int> {
    let text = fs::read_to_string(root().join("include/gdrfab.h")).unwrap();
    let defined = text.lines().filter_map(|line| line.strip_prefix("#define GDRFAB_OPT_")?.split_once(' '));
    let number = |rest: &str| rest.split_whitespace().next().unwrap_or_default().parse().unwrap();
    defined.filter(|(name, _)| *name != "ENDPOINT").map(|(name, rest)| (name.into(), number(rest))).collect()
}

// ---- one provider, in a process of its own

fn row(name: &str, answer: &str) {
    assert!(!answer.contains("  ") && !answer.contains('\n'), "{name}: {answer}");
    println!("row\t{name}\t{answer}");
}

fn answers(provider: &str) {
    // The test harness may have begun a line.
    println!();
    options_of(provider);
    promises_of(provider);
}

fn ep_type(provider: &str) -> u32 {
    if provider == RDM { EP_RDM } else { EP_MSG }
}

fn hints(provider: &str) -> Info {
    Info { prov_name: Some(provider.into()), ep_type: ep_type(provider), ..world::hints() }
}

/// A refusal such as `-EOPNOTSUPP`, with its text, but without the name of the option and without the errno's own text.
fn refused(number: i32, words: &str) -> String {
    let name = match number {
        errno::EOPNOTSUPP => "EOPNOTSUPP",
        errno::ENOPROTOOPT => "ENOPROTOOPT",
        errno::ENODATA => "ENODATA",
        n => panic!("{n} is no refusal: {words}"),
    };
    let told = words.rsplit_once(" (").map_or(words, |(told, _)| told);
    let told = told.split_once(": ").filter(|(name, _)| !name.contains(' ')).map_or(told, |(_, rest)| rest);
    assert!(!told.is_empty(), "{name} without words");
    format!("{name}: {told}")
}

fn options_of(provider: &str) {
    let numbers = in_header();
    let known: Vec<&str> = OPTIONS.iter().map(|o| o.0).collect();
    assert!(numbers.len() == known.len() && known.iter().all(|name| numbers.contains_key(*name)), "{numbers:?} and {known:?}");
    let name = CString::new(provider).unwrap();
    // SAFETY: handles come from the calls before, and memory behind pointers lives throughout.
    unsafe {
        let (mut list, mut fabric, mut domain, mut ep) = (null_mut(), null_mut(), null_mut(), null_mut());
        let hints = info::gdrfab_dupinfo(null());
        (*hints).prov_name = name.as_ptr().cast_mut();
        (*hints).mr_mode = 0x1ffc;
        (*hints).ep_type = ep_type(provider);
        assert_eq!(info::gdrfab_getinfo(1, null(), null(), 0, hints, &mut list), 0, "{}", last_words());
        assert_eq!(objects::gdrfab_fabric_open(list, null_mut(), &mut fabric), 0, "{}", last_words());
        assert_eq!(objects::gdrfab_domain_open(fabric, list, null_mut(), &mut domain), 0, "{}", last_words());
        for (name, value) in OPTIONS {
            // A new endpoint each time: an option may depend on another, and some must be set before anything else.
            assert_eq!(objects::gdrfab_ep_open(domain, list, null_mut(), &mut ep), 0, "{}", last_words());
            let nth = |n| Paths::ALL.into_iter().filter(|p| (*list).paths & p.bits() != 0).nth(n).unwrap().bits();
            let wanted = match value {
                Value::ReadOnly => vec![0; 8],
                Value::U32(v) => v.to_ne_bytes().into(),
                Value::U64(v) => v.to_ne_bytes().into(),
                Value::Path(n) => nth(*n).to_ne_bytes().into(),
                Value::Text(text) => format!("{text}\0").into(),
            };
            row(&format!("GDRFAB_OPT_{name}"), &ask(ep, numbers[*name], &wanted, value));
            assert_eq!(objects::gdrfab_ep_close(ep), 0);
        }
        assert_eq!(objects::gdrfab_domain_close(domain), 0);
        assert_eq!(objects::gdrfab_fabric_close(fabric), 0);
        info::gdrfab_freeinfo(list);
        (*hints).prov_name = null_mut();
        info::gdrfab_freeinfo(hints);
    }
}

fn last_words() -> String {
    // SAFETY: a NUL-terminated string of the library's.
    unsafe { CStr::from_ptr(info::gdrfab_last_error()) }.to_string_lossy().into()
}

/// # Safety
/// The endpoint is open.
unsafe fn ask(ep: *mut objects::gdrfab_ep, option: c_int, wanted: &[u8], kind: &Value) -> String {
    let get = || {
        let (mut value, mut room) = ([0u8; 64], wanted.len());
        // SAFETY: the caller promises an open endpoint; the value has room for every option.
        let rc = unsafe { options::gdrfab_ep_getopt(ep, 0, option, value.as_mut_ptr().cast::<c_void>(), &mut room) };
        if rc == 0 { Ok(value[..room].to_vec()) } else { Err((-rc, last_words())) }
    };
    // A number's first bytes are its low ones on every CPU that the library supports.
    let shown = |value: &[u8]| match kind {
        Value::Text(_) => format!("{:?}", String::from_utf8_lossy(value).trim_end_matches('\0')),
        _ => value.iter().rev().fold(0, |n, byte| n << 8 | u64::from(*byte)).to_string(),
    };
    let before = get();
    // SAFETY: the caller promises an open endpoint; the value is live.
    let rc = unsafe { options::gdrfab_ep_setopt(ep, 0, option, wanted.as_ptr().cast::<c_void>(), wanted.len()) };
    let (number, words) = (-rc, last_words());
    match (before.as_deref().map(shown), rc) {
        (Ok(value), _) if matches!(kind, Value::ReadOnly) && rc == -errno::ENOPROTOOPT => value,
        (Ok(text), 0) => {
            assert_eq!(get().as_deref(), Ok(wanted), "option {option} was set to {wanted:?}, and is forgotten");
            format!("holds ({text})")
        }
        (Ok(text), _) => {
            assert_eq!(get(), before, "option {option} is refused, and changes");
            format!("({text}) {}", refused(number, &words))
        }
        (Err(e), _) => {
            assert_eq!(e.0, number, "option {option} can be set and not read, or the other way round");
            refused(number, &words)
        }
    }
}

/// True if hints that ask for a property find the provider.
fn asked(provider: &str, ask: impl FnOnce(&mut Info)) -> String {
    let mut hints = hints(provider);
    ask(&mut hints);
    match list(flags::GETINFO_ALL, &hints).unwrap().into_iter().find(|i| i.prov_name.as_deref() == Some(provider)).unwrap().reason {
        None => "holds".into(),
        Some(e) => refused(e.errno, &e.to_string()),
    }
}

fn promises_of(provider: &str) {
    let world = World::of(hints(provider), 64);
    let info = &world.info;
    let lacks = |bits: u64, names: &[(u64, &str)]| {
        if bits == 0 { "all".into() } else { format!("all but {}", flags::words(bits, names).replace(" | ", ", ")) }
    };
    row("paths", &info.paths.words().replace(',', ", "));
    row("capabilities of connected endpoints", &lacks(flags::CAPS & !flags::CONNECTIONLESS & !info.caps, flags::NAMES));
    row("msg_order: operations keep their order", &lacks(flags::ORDER_ALL & !info.msg_order, flags::ORDER_NAMES));
    let strict = asked(provider, |h| h.comp_order = flags::ORDER_ALL);
    let always = if info.comp_order == flags::ORDER_ALL {
        ", always"
    } else if strict == "holds" {
        ", if asked for"
    } else {
        ""
    };
    let strict = strict.split(": ").next().unwrap_or_default();
    row("comp_order: in posting order (not lists)", &format!("{strict}{always}"));
    row("GDRFAB_DELIVERY_COMPLETE", &asked(provider, |h| h.tx_op_flags = flags::DELIVERY_COMPLETE));
    row("GDRFAB_TRANSMIT_COMPLETE", &asked(provider, |h| h.tx_op_flags = flags::TRANSMIT_COMPLETE));
    row("GDRFAB_PROGRESS_AUTO", &asked(provider, |h| h.progress = PROGRESS_AUTO));
    row("GDRFAB_PROGRESS_MANUAL", &asked(provider, |h| h.progress = PROGRESS_MANUAL));
    row("local buffers without a desc (MR_LOCAL)", &asked(provider, |h| h.mr_mode &= !flags::MR_MODE_LOCAL));
    row("keys of the caller's choice (MR_PROV_KEY)", &asked(provider, |h| h.mr_mode &= !flags::MR_MODE_PROV_KEY));
    row("remote offsets (MR_VIRT_ADDR)", &asked(provider, |h| h.mr_mode &= !flags::MR_MODE_VIRT_ADDR));
    row("a write with data takes a posted receive", if info.mode & flags::RX_CQ_DATA != 0 { "yes" } else { "no" });
    row("cq_data_size", &info.cq_data_size.to_string());
    row("inject_size", &info.inject_size.to_string());
    row("rma_iov_limit", &info.rma_iov_limit.to_string());
    let ep = world.endpoint(false).unwrap();
    row("connecting by exchanged addresses", if provider != RDM && ep.address().is_ok() { "holds" } else { "no" });
    let mut bytes = [0u8; 64];
    // SAFETY: the bytes outlive the operations.
    let place = unsafe { Iov::new(bytes.as_mut_ptr() as usize, bytes.len()) };
    let access = gdrfab::mr::Access::all() - gdrfab::mr::Access::ATOMIC;
    let mr = world.register(gdrfab::mr::Attr { access, ..world::memory(&[place]) }).unwrap();
    ep.recv(&[place], &Common { context: 9, peer: UNSPEC, ..Common::default() }, &[mr.desc()]).unwrap();
    let cancelled = match ep.cancel(9) {
        Ok(()) => {
            let (entry, why) = world.cq.read_error().expect("the entry of what was cancelled");
            assert_eq!((entry.context, why.error.errno), (9, errno::ECANCELED));
            "holds".into()
        }
        Err(e) => refused(e.errno, &e.to_string()),
    };
    row("gdrfab_cancel() of a receive", &cancelled);
    ep.close().unwrap();
    mr.close().unwrap();
}
