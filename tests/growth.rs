// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Code that allocates a variable number of elements must use src/fallible.rs, where the allocation can fail, or be listed here with the bound
//! on the number. The reserve (src/reserve.rs) serves bounded allocations when the system has no memory.
//!
//! The sources are read as text: an allocation is recognised by the text of its line, not by the line's number.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

/// Calls that allocate the number of elements that they are given.
const WORDS: [&str; 8] = [
    "Vec::with_capacity(",
    "String::with_capacity(",
    "vec![",
    ".to_vec()",
    ".resize(",
    ".resize_with(",
    ".reserve_exact(",
    "new_uninit_slice(",
];

/// Files, the number of such allocations in each, and the bound on them.
const BOUNDED: &[(&str, usize, &str)] = &[
    ("fabric/domain.rs", 1, "kinds of objects"),
    ("hmem/copier/mod.rs", 1, "ANSWER_BYTES"),
    ("hmem/copier/wire.rs", 2, "ASK_BYTES and ANSWER_BYTES"),
    ("hmem/cuda/import.rs", 1, "devices of this host"),
    ("hmem/neuron/mod.rs", 1, "BOUNCE"),
    ("hmem/synapseai/mod.rs", 1, "BOUNCE"),
    ("hmem/ze/probe.rs", 2, "what the driver lists"),
    ("prov/atomic.rs", 1, "operands of one atomic"),
    ("prov/described.rs", 1, "MR_IOV_LIMIT"),
    ("prov/info.rs", 1, "Secret::MAX"),
    ("prov/lane.rs", 1, "a message of the lane, which fits its eager limit"),
    ("prov/pep.rs", 1, "private data of a connection"),
    ("prov/queue.rs", 3, "room was made before, or as many as the ring has"),
    ("prov/shm/connect/cm.rs", 1, "private data of a connection"),
    ("prov/shm/copy/coop_list.rs", 1, "regions of a list"),
    ("prov/shm/copy/device.rs", 2, "regions of a list; COPIES"),
    ("prov/shm/copy/mixed_paths.rs", 2, "the iov limit; BOUNCE"),
    ("prov/shm/endpoint.rs", 1, "private data of a connection"),
    ("prov/shm/handshake/acceptor.rs", 1, "private data of a connection"),
    ("prov/shm/lane.rs", 1, "a message in a line of the ring"),
    ("prov/shm/memory/locate.rs", 1, "MR_IOV_LIMIT"),
    ("prov/shm/memory/mr.rs", 1, "the iov limit"),
    ("prov/shm/ops/atomic.rs", 1, "operands of one atomic"),
    ("prov/shm/ops/list.rs", 1, "regions of a list"),
    ("prov/shm/ops/recv.rs", 1, "room was made before"),
    ("prov/shm/ops/rendezvous.rs", 1, "SLOTS"),
    ("prov/shm/ops/rma.rs", 1, "the iov limit"),
    ("prov/shm/peer/regions.rs", 2, "FILTER_BITS; MR_IOV_LIMIT"),
    ("prov/shm/state/conn.rs", 1, "SLOTS"),
    ("prov/shm/state/in_flight.rs", 1, "SLOTS"),
    ("prov/shm/state/posted_receives.rs", 1, "room was made before"),
    ("prov/shm/wire/frame.rs", 4, "NAME_MAX and DATA_MAX"),
    ("prov/tcp/connect/cm.rs", 2, "private data of a connection"),
    ("prov/tcp/handshake/acceptor.rs", 1, "private data of a connection"),
    ("prov/tcp/handshake/dial.rs", 1, "a hello"),
    ("prov/tcp/handshake/exchange.rs", 3, "a handshake message"),
    ("prov/tcp/memory/source.rs", 1, "INJECT_SIZE, or a part of a body"),
    ("prov/tcp/ops/atomic.rs", 1, "operands of one atomic"),
    ("prov/tcp/ops/keepalive.rs", 1, "streams of a connection"),
    ("prov/tcp/ops/list.rs", 1, "BLOCKS_MAX"),
    ("prov/tcp/ops/target.rs", 2, "pieces of a frame; blocks so short that their bytes are few"),
    ("prov/tcp/rail/connection.rs", 2, "SEGMENT and REACH"),
    ("prov/tcp/rail/connector.rs", 1, "streams of a connection"),
    ("prov/tcp/secure/auth.rs", 2, "FILE_MAX, and constants"),
    ("prov/tcp/secure/known.rs", 1, "KEY"),
    ("prov/tcp/secure/noise.rs", 3, "a handshake message"),
    ("prov/tcp/secure/sealed.rs", 1, "BUFFER"),
    ("prov/tcp/stream/gather.rs", 1, "STRIPE"),
    ("prov/tcp/stream/rx.rs", 1, "REACH_MAX"),
    ("prov/tcp/stream/scatter.rs", 1, "streams of a connection"),
    ("prov/tcp/stream/stripes.rs", 1, "a bit for each stripe of a message"),
    ("prov/tcp/wire/hello.rs", 2, "an address and private data"),
    ("prov/verbs/connect/cm.rs", 2, "private data of a connection"),
    ("prov/verbs/connect/pep.rs", 1, "private data of a connection"),
    ("prov/verbs/cq.rs", 1, "a card's queue, which fails by itself"),
    ("prov/verbs/device/gid.rs", 1, "65,536, a card's table"),
    ("prov/verbs/endpoint.rs", 1, "rails of a connection"),
    ("prov/verbs/lane/rma.rs", 2, "the iov limit"),
    ("prov/verbs/lane/target.rs", 1, "operands of one atomic"),
    ("prov/verbs/memory/bounce.rs", 1, "the iov limit"),
    ("prov/verbs/ops/post.rs", 1, "INJECT_SIZE"),
    ("prov/verbs/queue/retransmit.rs", 1, "requests in flight on a rail"),
    ("prov/verbs/queue/service.rs", 1, "the iov limit"),
    ("prov/verbs/rail/striping.rs", 1, "regions of a list"),
    ("prov/verbs/sys/cm_event.rs", 1, "private data of a connection"),
    ("prov/waiter.rs", 1, "waiters of a queue"),
    ("rdm/connect/connected.rs", 1, "private data of a connection"),
    ("rdm/matching/posted_receives.rs", 1, "BUCKETS"),
    ("rdm/parts/peers.rs", 1, "room was made before"),
    ("rdm/transfer/loopback.rs", 2, "TURN"),
    ("rdm/transfer/recv.rs", 2, "the iov limit"),
    ("rdm/transfer/send.rs", 2, "the iov limit"),
    ("sync/area.rs", 1, "AREA, of tests"),
    ("sync/consumer.rs", 7, "of tests"),
    ("sys/epoll.rs", 1, "MOST"),
    ("sys/space/pages.rs", 2, "FIRST and MOST"),
    ("sys/tcp.rs", 3, "descriptors that are polled at once"),
];

/// True if a line allocates a variable number: `vec![a, b]` has as many elements as are written, and so does a literal number.
fn allocates(line: &str) -> bool {
    WORDS.iter().any(|word| match line.find(word).map(|at| &line[at + word.len()..]) {
        Some(rest) if *word == "vec![" => rest.split(']').next().is_some_and(|inside| inside.contains("; ")),
        Some(rest) => !rest.split(')').next().is_some_and(|n| !n.is_empty() && n.chars().all(|c| c.is_ascii_digit())),
        None => false,
    })
}

/// Lines of a file that allocate, without those of its tests and comments.
fn places(source: &str) -> Vec<&str> {
    let own = source.split("#[cfg(test)]\nmod ").next().unwrap_or_default();
    own.lines().map(str::trim).filter(|line| !line.starts_with("//") && allocates(line)).collect()
}

fn sources(dir: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(dir).unwrap_or_else(|e| panic!("{}: {e}", dir.display())) {
        let path = entry.unwrap().path();
        if path.is_dir() {
            sources(&path, found);
        } else if path.extension().is_some_and(|e| e == "rs") {
            found.push(path);
        }
    }
}

/// True if a file belongs to the library: programs may end for want of memory, and so may tests.
fn is_of_the_library(name: &str) -> bool {
    !name.starts_with("bin/") && name != "fallible.rs" && !name.ends_with("/tests.rs") && !name.contains("/tests/")
}

#[test]
fn growth_by_a_number_can_fail_or_is_bounded() {
    let src = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut files = Vec::new();
    sources(&src, &mut files);
    let mut bounded: BTreeMap<&str, (usize, &str)> = BOUNDED.iter().map(|(file, n, why)| (*file, (*n, *why))).collect();
    assert_eq!(bounded.len(), BOUNDED.len(), "a file is listed twice");
    let mut wrong = Vec::new();
    for file in files {
        let name = file.strip_prefix(&src).unwrap().to_string_lossy().into_owned();
        let text = fs::read_to_string(&file).unwrap();
        let found = if is_of_the_library(&name) { places(&text) } else { Vec::new() };
        let (known, why) = bounded.remove(name.as_str()).unwrap_or((0, "use src/fallible.rs, or say what bounds it"));
        if found.len() != known {
            wrong.push(format!("{name}: {} places, {known} are known ({why}):\n  {}", found.len(), found.join("\n  ")));
        }
    }
    wrong.extend(bounded.keys().map(|file| format!("{file}: there is no such file")));
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
}

/// Proves that the check above finds what it must find.
#[test]
fn growth_is_seen() {
    for line in
        ["let b = vec![0u8; len];", "Vec::with_capacity(n)", "let d = data.to_vec();", "all.resize(n, 0)", "all.resize_with(n, || None)"]
    {
        assert_eq!(places(line).len(), 1, "{line}");
    }
    for line in [
        "// vec![0; n]",
        "let b = vec![a, b];",
        "Vec::with_capacity(64)",
        "fallible::filled(0, n)?",
        "#[cfg(test)]\nmod tests {\nvec![0; n]",
    ] {
        assert!(places(line).is_empty(), "{line}");
    }
}
